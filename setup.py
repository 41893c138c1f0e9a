"""The compiled parts, and the types of the public functions.

The installation goes on where no compiler is found: torch and `tokenizers` do their work then.

The kernels of the ordered products are built once per level of instructions; which one is loaded is decided when they
are used, see `student.kernels.native`. WordPiece is built once, see `pipeline.text.wordpiece.compiled_wordpiece`.
Everything else about the package is in pyproject.toml.
"""

import copy
import importlib.util
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

LEVELS: dict[str, list[str]] = {"portable": []}
if platform.machine() in {"x86_64", "AMD64"}:
    # Every level names its instructions: the last -march wins, also over one in CFLAGS.
    LEVELS = {"portable": ["-march=x86-64"], "avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4"]}
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
        depends=["setup.py", *sorted(map(str, KERNELS.glob("*.h")))],
        extra_compile_args=[*COMPILE, *OPENMP, *flags],
        language="c++",
        optional=True,
        py_limited_api=True,  # a file name without a version of Python
    )


WORDPIECE = Path("pipeline/text/wordpiece/cpp")
_wordpiece = Extension(
    "pipeline.text.wordpiece._compiled",
    sources=sorted(map(str, WORDPIECE.glob("*.cpp"))),
    depends=["setup.py", *sorted(map(str, WORDPIECE.glob("*.h")))],
    extra_compile_args=[*COMPILE, "-pthread", *LEVELS["portable"]],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
    py_limited_api=True,
)


ENGINE = Path("student/engine")


def _build_engine(library: Path) -> None:
    """Builds the engine by its own file, which the light package's setup uses, too."""
    spec = importlib.util.spec_from_file_location("engine_build", ENGINE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.build(library)
    except (OSError, module.subprocess.CalledProcessError) as error:
        sys.stderr.write(f"the engine was not built: {error}\n")


class BuildApart(build_ext):
    """Builds all levels at once. Each has a folder of its own, since their files have the same names."""

    def finalize_options(self) -> None:
        """Uses all cores. An editable installation ignores the options of `setup`."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        """Builds all extensions, and the engine next to them."""
        root = Path() if self.inplace else Path(self.build_lib)
        with ThreadPoolExecutor() as pool:
            engine = pool.submit(_build_engine, root / ENGINE / "python/distill_student/libdistill_student.so")
            super().run()
            engine.result()

    def build_extension(self, ext: Extension) -> None:
        """Builds one extension."""
        alone = copy.copy(self)
        alone.build_temp = str(Path(self.build_temp, ext.name))
        super(BuildApart, alone).build_extension(ext)


class WithTypes(build_py):
    """Copies the modules and writes the keywords of the public functions for type checkers."""

    def run(self) -> None:
        """Copies the modules. Without the libraries of the commands' settings, types are left out."""
        super().run()
        folder = Path() if self.editable_mode else Path(self.build_lib)
        sys.path.insert(0, str(Path(__file__).parent))
        try:
            from distill.commands.stub import stub
        except ImportError as error:
            sys.stderr.write(f"the types of the public functions were not written: {error}\n")
        else:
            (folder / "distill/__init__.pyi").write_text(stub(), encoding="utf-8")
        finally:
            del sys.path[0]


class ForAllPythons(bdist_wheel):
    """A wheel that depends on the platform, but on no version of Python: ctypes loads the compiled parts."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the wheel's tags."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"bdist_wheel": ForAllPythons, "build_ext": BuildApart, "build_py": WithTypes},
    ext_modules=[*(_kernels(level, flags) for level, flags in LEVELS.items()), _wordpiece],
)
