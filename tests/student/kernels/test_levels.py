"""A level's library holds its level's instructions and no better ones: those would end the process on an older machine.

The code is read, not run, so that a machine which has all the instructions proves it too.
"""

import platform
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

PORTABLE, AVX2, AVX512 = (f"student.kernels._{level}" for level in ("portable", "avx2", "avx512"))
WORDPIECE = "pipeline.text.wordpiece._compiled"
BEYOND_PORTABLE = r"\tv|%[yz]mm|%k[0-7]"  # all names of AVX's instructions begin with v
BEYOND_AVX2 = r"%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|2\d|3[01])"

pytestmark = [
    pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="there is one level here"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]


def code(module: str) -> list[str]:
    """The instructions of a library, a line each."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not built")
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--no-addresses", str(Path(spec.origin))]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if line.startswith("\t")]


@pytest.mark.parametrize(
    ("module", "beyond"), [(PORTABLE, BEYOND_PORTABLE), (WORDPIECE, BEYOND_PORTABLE), (AVX2, BEYOND_AVX2)]
)
def test_no_instruction_is_beyond_the_level(module: str, beyond: str) -> None:
    assert not [line for line in code(module) if re.search(beyond, line)][:5]


@pytest.mark.parametrize(("module", "register"), [(PORTABLE, "%xmm"), (AVX2, "%ymm"), (AVX512, "%zmm")])
def test_the_registers_of_the_level_are_used(module: str, register: str) -> None:
    assert any(register in line for line in code(module))
