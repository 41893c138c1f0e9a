"""Builds the engine: one shared library for all levels of instructions.

``python build.py LIBRARY`` builds the library, ``python build.py --sqlite LIBRARY`` an extension of SQLite around it.
``CXX=aarch64-linux-gnu-g++`` builds them for another machine. The setups of both packages call it. It only needs a
C++17 compiler.
"""

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
KERNELS = ENGINE / "cpp/kernels.cpp"
SQLITE = ENGINE / "sqlite/extension.cpp"
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


def levels_of(compiler: list[str]) -> dict[str, list[str]]:
    """Returns the levels of instructions for the target of a compiler, with their flags."""
    command = [*compiler, "-dumpmachine"]
    machine = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    # Other machines have one level. That of aarch64 includes NEON.
    return X86_64 if machine.startswith("x86_64") else {"portable": []}


def build(library: Path, *others: Path) -> None:
    """Compiles the library, unless it is newer than its sources.

    Args:
        library: the path of the library.
        others: additional sources of the library.

    Raises:
        OSError: if there is no compiler, or the file cannot be written.
        CalledProcessError: if the compiler fails.
    """
    if library.exists() and library.stat().st_mtime > max(
        path.stat().st_mtime for path in [*sources(), *others, Path(__file__)]
    ):
        return
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    given = shlex.split(os.environ.get("CXXFLAGS", ""))
    levels = levels_of(compiler)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        units = {
            path.stem: [str(path), *levels["portable"]] for path in (ENGINE / "cpp").glob("*.cpp") if path != KERNELS
        }
        units |= {path.stem: [str(path), *levels["portable"]] for path in others}
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
        library.write_bytes(Path(finished).read_bytes())


if __name__ == "__main__":
    build(Path(sys.argv[-1]), *([SQLITE] if "--sqlite" in sys.argv else []))
