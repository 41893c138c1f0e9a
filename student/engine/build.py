"""Builds the engine: one shared library for all levels of instructions.

``python build.py LIBRARY`` builds the library, and with ``--sqlite`` or ``--duckdb`` an extension of the database.
``CXX=aarch64-linux-gnu-g++`` builds for another machine. The setups of both packages call it. It only needs a C++17
compiler.
"""

import argparse
import os
import shlex
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
LIBRARY = "libdistill_student.so"
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


def levels_of(compiler: list[str]) -> dict[str, list[str]]:
    """Returns the levels of instructions for the target of a compiler, with their flags."""
    # Other machines have one level. That of aarch64 includes NEON.
    return X86_64 if is_for_x86_64(compiler) else {"portable": []}


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
    levels = levels_of(compiler)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        units = {
            path.stem: [str(path), *levels["portable"]] for path in (ENGINE / "cpp").glob("*.cpp") if path != KERNELS
        }
        units |= {path.stem: [str(path), *levels["portable"]] for path in extension}
        units |= {level: [str(KERNELS), f"-DLEVEL={level}", *flags] for level, flags in levels.items()}

        def compiled(name: str) -> str:
            target = str(Path(folder, f"{name}.o"))
            subprocess.run([*compiler, *COMPILE, *given, *units[name], "-c", "-o", target], check=True)  # noqa: S603
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, units))
        finished = str(Path(folder, "library.so"))
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
    fields = [
        "4",
        platform,
        "v1.2.0",
        "1",
        "C_STRUCT",
        "",
        "",
        "",
    ]  # layout, platform, DuckDB from, own version, interface
    return b"".join(field.encode().ljust(32, b"\0") for field in reversed(fields)) + bytes(256)


def main() -> None:
    """Builds what the command line names."""
    parser = argparse.ArgumentParser(
        description="Builds the engine, or an extension of a database with the engine in it."
    )
    kind = parser.add_mutually_exclusive_group()
    for flag in EXTENSIONS:
        kind.add_argument(flag, dest="kind", action="store_const", const=flag)
    parser.add_argument("library", type=Path)
    given = parser.parse_args()
    is_duckdb = given.kind == "--duckdb"
    if is_duckdb and given.library.name != DUCKDB_NAME:
        parser.error(f"{given.library}: DuckDB needs the name {DUCKDB_NAME}")
    extension = [EXTENSIONS[given.kind]] if given.kind else []
    build(given.library, *extension, footer=duckdb_footer() if is_duckdb else b"")


if __name__ == "__main__":
    main()
