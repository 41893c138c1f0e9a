"""The light package: one wheel per platform, for all Pythons."""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))
from build import LIBRARY, build


class WithLibrary(build_py):
    """Builds the library next to the package's files."""

    def run(self) -> None:
        super().run()
        build(Path(self.build_lib, "distill_student", LIBRARY).absolute())


class ForAllPythons(bdist_wheel):
    """A wheel that depends on the platform, but on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Compiled(Distribution):
    """A package with compiled code."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": WithLibrary, "bdist_wheel": ForAllPythons}, distclass=Compiled)
