"""Builds the engine: one shared library for all levels of instructions. ``python build.py LIBRARY``.

The setup of the light package and that of the whole one call it; so can anybody with a C++17 compiler.
"""

import os
import platform
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
LEVELS: dict[str, list[str]] = {"portable": []}
if platform.machine() in {"x86_64", "AMD64"}:
    # Each names its instructions: the last -march wins, also over one in CXXFLAGS.
    LEVELS = {
        "portable": ["-march=x86-64"],
        "avx2": ["-march=x86-64-v3"],
        "avx512": ["-march=x86-64-v4"],
        "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"],
    }
COMPILE = ["-O3", "-g0", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-ffp-contract=fast", "-pthread", "-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-psabi"]


def sources() -> list[Path]:
    """All files that the library is made of."""
    shared = ENGINE.parent / "kernels/cpp", ENGINE.parents[1] / "pipeline/text/wordpiece/cpp"
    return [ENGINE / "distill_student.h", *(path for folder in (ENGINE / "cpp", *shared) for path in folder.iterdir())]


def build(library: Path) -> None:
    """Compiles the library, unless it is newer than its sources; raises OSError or CalledProcessError if it cannot."""
    if library.exists() and library.stat().st_mtime > max(
        path.stat().st_mtime for path in [*sources(), Path(__file__)]
    ):
        return
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    given = shlex.split(os.environ.get("CXXFLAGS", ""))
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        units = {
            path.stem: [str(path), *LEVELS["portable"]] for path in (ENGINE / "cpp").glob("*.cpp") if path != KERNELS
        }
        units |= {level: [str(KERNELS), f"-DLEVEL={level}", *flags] for level, flags in LEVELS.items()}

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
    build(Path(sys.argv[1]))
