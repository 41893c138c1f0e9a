"""Builds the engine: one shared library for all levels of instructions, or a module for WebAssembly.

``python build.py LIBRARY`` builds the library, and with ``--sqlite`` or ``--duckdb`` an extension of the database.
``CXX=aarch64-linux-gnu-g++`` builds for another machine. The setups of both packages call it. It only needs a C++17
compiler. The library and the extensions share compiled files, which stay in ``~/.cache/distill-engine``.

``python build.py --wasm node/engine.wasm`` builds the module, after ``pip install ziglang``. Zig brings clang with the
C and C++ libraries for WebAssembly. Its version is fixed, so the same sources give the same bytes, and a test compares
them. After a change in C++, run this and commit the file with the sources. The module imports nothing: a page may
forbid all requests, and Node needs no WASI.
"""

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
LIBRARY = "libdistill_student.so"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "distill-engine"
KERNELS = ENGINE / "cpp/kernels.cpp"
EXTENSIONS = {"--sqlite": ENGINE / "sql/sqlite.cpp", "--duckdb": ENGINE / "sql/duckdb.cpp"}
DUCKDB_NAME = "distill.duckdb_extension"  # DuckDB makes the name of the function that it calls from that of the file
# Each level names its instructions: the last -march wins, also over one in CXXFLAGS.
X86_64 = {
    "portable": ["-march=x86-64"],
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4"],
    "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"],
}
COMPILE = ["-O3", "-g0", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-ffp-contract=fast", "-pthread", "-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-psabi"]
ZIG = "0.17.1"
NO_FILES = ENGINE / "cpp/read.cpp"  # WebAssembly has no file system
WASM = ["-target", "wasm32-wasi", "-mcpu=baseline+simd128+bulk_memory", "-mexec-model=reactor", "-std=c++17", "-O3"]
WASM += ["-g0", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-trapping-math"]
WASM += ["-fvisibility=hidden", "-DLEVEL=portable", "-Wall", "-Wextra"]
EXPORTS = ["open_bytes", "last_error", "num_tasks", "describe", "label", "tokenise", "logits", "predict"]
EXPORTS += ["word_logits", "predict_words"]
WASM += ["-s", "-Wl,-z,stack-size=1048576", "-Wl,--export=malloc", "-Wl,--export=free"]
WASM += [f"-Wl,--export=distill_{name}" for name in EXPORTS]


def sources() -> list[Path]:
    """Returns all source files of the library."""
    shared = ENGINE.parent / "kernels/cpp", ENGINE.parents[1] / "pipeline/text/wordpiece/cpp"
    return [ENGINE / "distill_student.h", *(path for folder in (ENGINE / "cpp", *shared) for path in folder.iterdir())]


def compiler_command() -> list[str]:
    """Returns the C++ compiler, ``CXX`` if it is set."""
    return shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")


def is_for_x86_64(compiler: list[str]) -> bool:
    """Whether a compiler's programs are for x86-64, and not for aarch64."""
    command = [*compiler, "-dumpmachine"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("x86_64")  # noqa: S603


def compiled_folder(command: list[str]) -> Path | None:
    """Returns the folder of what a command of a compiler makes of the sources. None if it cannot be written."""
    version = subprocess.run([*command, "--version"], check=True, capture_output=True).stdout  # noqa: S603
    known = hashlib.sha256(version + repr(command).encode() + Path(__file__).read_bytes())
    for path in sorted([*sources(), *(ENGINE / "sql").iterdir()]):
        known.update(path.read_bytes())
    folder = CACHE / known.hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def build(library: Path, *extension: Path, footer: bytes = b"") -> None:
    """Compiles the library, unless it is newer than its sources.

    Args:
        library: the path of the library.
        extension: the source of an extension around it.
        footer: what follows in the file.

    Raises:
        OSError: if there is no compiler, or the file cannot be written.
        CalledProcessError: if the compiler fails.
    """
    read = [*sources(), *(path for source in extension for path in source.parent.iterdir()), Path(__file__)]
    if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in read):
        return
    compiler = compiler_command()
    given = shlex.split(os.environ.get("CXXFLAGS", ""))
    # Other machines have one level. That of aarch64 includes NEON.
    levels = X86_64 if is_for_x86_64(compiler) else {"portable": []}
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [*compiler, *COMPILE, *given]
    with tempfile.TemporaryDirectory() as temporary:
        folder = compiled_folder(command) or Path(temporary)
        shared = [*(path for path in (ENGINE / "cpp").glob("*.cpp") if path != KERNELS), *extension]
        units = {path.stem: [str(path), *levels["portable"]] for path in shared}
        units |= {level: [str(KERNELS), f"-DLEVEL={level}", *flags] for level, flags in levels.items()}

        def compiled(name: str) -> str:
            target, part = folder / f"{name}.o", str(folder / f"{name}.{os.getpid()}")
            if not target.exists():
                subprocess.run([*command, *units[name], "-c", "-o", part], check=True)  # noqa: S603
                Path(part).replace(target)  # another process may compile the same file
            return str(target)

        objects = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for target in pool.map(compiled, units):
                objects.append(target)
                print(f"{library.name}: {len(objects)} of {len(units)} files compiled", file=sys.stderr)  # noqa: T201
        finished = str(Path(temporary, "library.so"))
        link = ["-shared", "-pthread", *shlex.split(os.environ.get("LDFLAGS", "")), "-o", finished]
        subprocess.run([*compiler, *objects, *link], check=True)  # noqa: S603
        library.unlink(missing_ok=True)  # a process may have it open
        library.write_bytes(Path(finished).read_bytes() + footer)


def duckdb_footer() -> bytes:
    """Returns the end of an extension's file, from which DuckDB learns what the extension was made for.

    Eight fields of 32 bytes, the last one first: layout of the fields, platform, oldest version of DuckDB, version of
    the extension, kind of interface, and three without a meaning. Then 256 bytes for a signature, which there is not.
    """
    platform = "linux_amd64" if is_for_x86_64(compiler_command()) else "linux_arm64"
    fields = ("4", platform, "v1.2.0", "1", "C_STRUCT", "", "", "")
    return b"".join(field.encode().ljust(32, b"\0") for field in reversed(fields)) + bytes(256)


def build_wasm(path: Path) -> None:
    """Compiles the module for WebAssembly.

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
        subprocess.run([*zig, "c++", *WASM, *sources, "-o", str(made)], check=True)  # noqa: S603
        path.write_bytes(made.read_bytes())


def main() -> None:
    """Builds what the command line names."""
    parser = argparse.ArgumentParser(
        description="Builds the engine, or an extension of a database with the engine in it."
    )
    kind = parser.add_mutually_exclusive_group()
    for flag in (*EXTENSIONS, "--wasm"):
        kind.add_argument(flag, dest="kind", action="store_const", const=flag)
    parser.add_argument("library", type=Path)
    given = parser.parse_args()
    if given.kind == "--wasm":
        return build_wasm(given.library)
    is_duckdb = given.kind == "--duckdb"
    if is_duckdb and given.library.name != DUCKDB_NAME:
        parser.error(f"{given.library}: DuckDB needs the name {DUCKDB_NAME}")
    extension = [EXTENSIONS[given.kind]] if given.kind else []
    return build(given.library, *extension, footer=duckdb_footer() if is_duckdb else b"")


if __name__ == "__main__":
    main()
