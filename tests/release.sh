#!/bin/sh
# Builds the files of a release, checks them, and runs them where nothing else is installed and no compiler is found:
#   tests/release.sh PYTHON FOLDER
# FOLDER/dist gets the packages. If it has some, as from other machines, these are checked and none is built. FOLDER also
# gets sbom.json and licences.md: the parts of an installation and their licences.
set -eu
python=$1
out=$(realpath -m "$2")
constraints=$PWD/constraints.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
PATH="$work/tools/bin:$PATH"
requirements='import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])'
pip install --quiet -c "$constraints" $(python -c "$requirements")

if [ -z "$(ls "$out/dist" 2>/dev/null)" ]; then
  # A copy of the files in git: folders may have compiled parts of another machine.
  mkdir -p "$work/source" "$work/built" "$out/dist"
  git ls-files -z | xargs -0 cp --parents -P -t "$work/source"
  python -m build --outdir "$work/built" "$work/source"
  python -m build --outdir "$work/built" --wheel "$work/source/student/engine"
  auditwheel repair --wheel-dir "$out/dist" "$work/built"/*.whl
  mv "$work/built"/*.tar.gz "$out/dist"
fi
twine check --strict "$out/dist"/*
python tests/helpers/release_files.py "$out/dist"

machine=$(uname -m)
for name in offline student; do "$python" -m venv "$work/$name"; done
# The light wheel takes seconds, so each Python of this machine tries it.
others=
for version in 3.11 3.12 3.13 3.14; do
  if "python$version" -m venv "$work/$version" 2>/dev/null; then others="$others $version"; fi
done
install() { PATH="$work/$1/bin" pip install --quiet --only-binary :all: -c "$constraints" "$2"; }
install offline "$(echo "$out"/dist/distill_offline-*"$machine".whl)[teacher]"
for name in student $others; do install $name "$(echo "$out"/dist/distill_student-*"$machine".whl)"; done
mkdir "$work/try"
cd "$work/try"
(
  PATH="$work/offline/bin"
  for compiler in cc c++ gcc g++ clang; do if command -v $compiler; then exit 1; fi; done
  distill --version
  python -c 'import student.kernels.native as k, pipeline.text.wordpiece.compiled_wordpiece as w; assert k.library() and w.library()'
  distill quickstart --demo
  distill export demo/runs/opinion-cbow --file student.distill
  distill predict student.distill "the food was awful but the view was superb ." --json
)
for name in student $others; do
  PATH="$work/$name/bin" python -c \
    'from distill_student import Predictor; print(Predictor("student.distill").predict(["the food was awful ."]))'
done

cd - >/dev/null
pip-licenses --python="$work/offline/bin/python" --format=markdown --with-urls --partial-match \
  --fail-on="GPL;General Public" --output-file="$out/licences.md"
cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file "$out/sbom.json" \
  "$work/offline/bin/python"
