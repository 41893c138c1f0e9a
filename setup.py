"""The compiled parts. The installation goes on where no compiler is found: torch and `tokenizers` do their work then.

The kernels of the ordered products are built once per level of instructions; which one is loaded is decided when they
are used, see `student.kernels.compiled`. WordPiece is built once, see `pipeline.text.wordpiece.compiled`. Everything
else about the package is in pyproject.toml.
"""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

LEVELS: dict[str, list[str]] = {"portable": []}
if platform.machine() in {"x86_64", "AMD64"}:
    LEVELS |= {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4"]}
# The warning is gcc's own about the undefined lanes in its headers.
COMPILE = ["-O3", "-g0", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
COMPILE += ["-ffp-contract=fast", "-Wno-maybe-uninitialized"]
# Compiled for OpenMP but not linked with it: the symbols are those of the library that torch has loaded, so that both
# share one pool of threads.
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []
KERNELS = Path("student/kernels/cpp")


def _kernels(level: str, flags: list[str]) -> Extension:
    return Extension(
        f"student.kernels._{level}",
        sources=sorted(map(str, KERNELS.glob("*.cpp"))),
        depends=sorted(map(str, KERNELS.glob("*.h"))),
        extra_compile_args=[*COMPILE, *OPENMP, *flags],
        language="c++",
        optional=True,
    )


WORDPIECE = Path("pipeline/text/wordpiece/cpp")
_wordpiece = Extension(
    "pipeline.text.wordpiece._compiled",
    sources=sorted(map(str, WORDPIECE.glob("*.cpp"))),
    depends=sorted(map(str, WORDPIECE.glob("*.h"))),
    extra_compile_args=[*COMPILE, "-pthread"],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
)

setup(
    ext_modules=[*(_kernels(level, flags) for level, flags in LEVELS.items()), _wordpiece],
    options={"build_ext": {"parallel": os.cpu_count()}},
)
