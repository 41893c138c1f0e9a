"""The threads of numpy's products."""

import subprocess
import sys

import pytest

from pipeline.blas import blas_threads

CODE = """
from pipeline.blas import blas_threads, set_blas_threads
set_blas_threads(2)
before = blas_threads()
set_blas_threads(1)
print(before, blas_threads())
"""


@pytest.mark.skipif(blas_threads() is None, reason="numpy has another BLAS")
def test_products_are_limited_to_a_number_of_threads() -> None:
    # In a process of its own: the limit holds for everything in a process.
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env={})
    before, after = done.stdout.split()
    assert int(before) >= int(after) == 1
