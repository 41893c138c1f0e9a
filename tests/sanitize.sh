#!/bin/sh
# Runs the tests of the C++ kernels and of the engine with their memory accesses and undefined behaviour watched, in a
# copy of the sources.
set -eu
python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r setup.py pyproject.toml README.md LICENSE pipeline student teacher data_manifests tests "$work"
cd "$work"
engine=student/engine/python/distill_student/libdistill_student.so
rm -f student/kernels/*.so pipeline/text/wordpiece/*.so "$engine"
export CFLAGS="-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
export CXXFLAGS="$CFLAGS" LDFLAGS="$CFLAGS"  # which of them is read depends on the version of setuptools
"$python" setup.py -q build_ext --inplace
# What cannot be compiled is left out without an error.
for library in student/kernels/_portable.*.so pipeline/text/wordpiece/_compiled.*.so "$engine"; do nm "$library" | grep -q __asan_init; done
# Python itself does not give back all it has, and is not compiled for this: the library has to be there first.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
  PYTHONPATH="$work" "$python" -m pytest -q -p no:cacheprovider tests/student/kernels/test_compiled.py \
  tests/student/kernels/test_compiled_alignment.py tests/student/kernels/test_compiled_recurrence.py tests/student/kernels/test_compiled_loss.py tests/student/train/test_optimizer.py tests/pipeline/text/test_reader.py \
  tests/student/engine --ignore=tests/student/engine/test_package.py --ignore=tests/student/engine/test_wasm.py  # whose programs run without these checks
