#!/bin/sh
# Compiles kernel.cpp for browsers and Node, as the file that is given: kernel.wasm. Once it is changed, run it and commit
# both. On Debian: apt-get install clang lld libc++-dev-wasm32 wasi-libc
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")"
exec clang++ --target=wasm32-wasi -nostdlib -nostdlibinc -isystem /usr/include/wasm32-wasi/c++/v1 -isystem /usr/include/wasm32-wasi \
  -std=c++17 -O3 -msimd128 -mbulk-memory -fno-exceptions -fno-rtti -fno-math-errno -fno-trapping-math -fvisibility=hidden \
  -Wl,--no-entry -Wl,--export-dynamic -Wl,--export=__heap_base -Wl,--strip-debug -Wl,-z,stack-size=1048576 -o "$out" kernel.cpp
