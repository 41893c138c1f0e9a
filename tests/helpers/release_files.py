"""Checks what the files of a release contain: ``python tests/helpers/release_files.py FOLDER``.

It needs nothing but Python and git, and prints every difference from what the repository has.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("data_manifests/", "distill/", "pipeline/", "student/", "teacher/")
ENGINE = "student/engine/python/distill_student"
LIBRARY = "libdistill_student.so"
LEVELS = {"x86_64": ("portable", "avx2", "avx512"), "aarch64": ("portable",)}
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
NAME = re.compile(r"(distill_\w+)-([\d.]+)-py3-none-manylinux_2_\d+_(x86_64|aarch64)(\.manylinux\w+)?\.whl")


def tracked() -> set[str]:
    """Returns the files of the packages in the repository."""
    # New files count, too, so that a change can be tested before it is committed.
    shown = ["-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(["git", "ls-files", *shown, *PACKAGES], check=True, capture_output=True, text=True)
    return {*listed.stdout.split("\0")} - {""}


def built(machine: str) -> set[str]:
    """Returns the parts of the package's wheel that its build makes."""
    kernels = {f"student/kernels/_{level}.abi3.so" for level in LEVELS[machine]}
    return {*kernels, "pipeline/text/wordpiece/_compiled.abi3.so", f"{ENGINE}/{LIBRARY}", "distill/__init__.pyi"}


def differences(actual: set[str], expected: set[str]) -> Iterator[str]:
    """Yields a line for each file that is missing and for each one too many."""
    yield from (f"{name} is missing" for name in sorted(expected - actual))
    yield from (f"{name} does not belong there" for name in sorted(actual - expected))


def wheel_problems(path: Path) -> Iterator[str]:
    """Yields what is wrong with a wheel."""
    match = NAME.fullmatch(path.name)
    if match is None:
        yield "its name has no tag of manylinux for all Pythons"
        return
    package, version, machine, _ = match.groups()
    if package == "distill_student":
        expected = {f"distill_student/{name}" for name in ("__init__.py", "py.typed", LIBRARY)}
    else:
        expected = tracked() | built(machine)
    with zipfile.ZipFile(path) as wheel:
        info = f"{package}-{version}.dist-info/"
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        yield from differences({name for name in names if not name.startswith(info)}, expected)
        yield from differences(names & {f"{info}licenses/LICENSE"}, {f"{info}licenses/LICENSE"})
        for name in sorted(names):
            if name.endswith(".so") and wheel.read(name)[18] != ELF_MACHINES[machine]:
                yield f"{name} is of another machine"


def archive_problems(path: Path) -> Iterator[str]:
    """Yields what is wrong with a source distribution."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    packaged = {name for name in names if name.startswith(PACKAGES)}
    own = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    generated = {name for name in names if name == "PKG-INFO" or name == "setup.cfg" or ".egg-info/" in name}
    yield from differences(packaged, tracked())
    yield from differences(names - packaged - generated, own)


def main() -> int:
    """Prints the problems of all files in a folder."""
    folder = Path(sys.argv[1])
    paths = sorted(folder.iterdir())
    failed = False
    for path in paths:
        problems = [*(wheel_problems(path) if path.suffix == ".whl" else archive_problems(path))]
        failed |= bool(problems)
        print(f"{path.name}: {'; '.join(problems) or 'complete'}")  # noqa: T201
    versions = {path.name.removesuffix(".tar.gz").split("-")[1] for path in paths}
    if len(versions) != 1:
        print(f"versions differ: {', '.join(sorted(versions)) or 'no files'}")  # noqa: T201
    return int(failed or len(versions) != 1)


if __name__ == "__main__":
    raise SystemExit(main())
