"""``python -m tests.messages``: writes ``expected.txt`` anew."""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["UPDATE_MESSAGES"] = "1"
    sys.exit(pytest.main(["-q", str(Path(__file__).parent)]))
