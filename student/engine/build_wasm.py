"""Builds the engine for WebAssembly: ``python build_wasm.py node/engine.wasm``, after ``pip install ziglang``.

Zig brings clang with the C and C++ libraries for WebAssembly. Its version is fixed, so the same sources give the same
bytes, and a test compares them. After a change in C++, run this and commit the file with the sources.

The module imports nothing: a page may forbid all requests, and Node needs no WASI.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
ZIG = "0.17.1"
NO_FILES = ENGINE / "cpp/mapped.cpp"  # there is no file system
COMPILE = ["-target", "wasm32-wasi", "-mcpu=baseline+simd128+bulk_memory", "-mexec-model=reactor", "-std=c++17", "-O3"]
COMPILE += ["-g0", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-fvisibility=hidden", "-DLEVEL=portable", "-Wall", "-Wextra"]
EXPORTS = ["open_bytes", "last_error", "num_tasks", "describe", "label", "tokenise", "logits", "predict"]
EXPORTS += ["word_logits", "predict_words"]
LINK = ["-s", "-Wl,-z,stack-size=1048576", "-Wl,--export=malloc", "-Wl,--export=free"]
LINK += [f"-Wl,--export=distill_{name}" for name in EXPORTS]


def build(path: Path) -> None:
    """Compiles the module.

    Args:
        path: the file to write.

    Raises:
        RuntimeError: if Zig has another version.
        CalledProcessError: if Zig is not installed, or fails.
    """
    zig = [sys.executable, "-m", "ziglang"]
    version = subprocess.run([*zig, "version"], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    if version != ZIG:
        raise RuntimeError(f"ziglang has version {version}, but the file is built with {ZIG}. Install that one.")
    sources = sorted(str(source) for source in (ENGINE / "cpp").glob("*.cpp") if source != NO_FILES)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "engine.wasm")
        subprocess.run([*zig, "c++", *COMPILE, *LINK, *sources, "-o", str(made)], check=True)  # noqa: S603
        path.write_bytes(made.read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[1]))
