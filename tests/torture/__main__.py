"""``make torture``: every command that writes, disturbed wherever it touches a file, repeated and compared.

What a try comes to is kept in a file of JSON lines, which the next call adds to; the table in ``docs/reliability.md``
is made of all of it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.torture.shim import preloaded


def main() -> int:
    """Tortures the commands on the command line. Returns how many tries found a fault."""
    arguments = _parsed()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "tests.torture", *sys.argv[1:]]
            return subprocess.run(command, env=preloaded(Path(folder)) | offline, check=False).returncode
    from tests.torture.run import torture

    return torture(arguments.short, arguments.most, arguments.commands, arguments.seed, arguments.results)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("commands", nargs="*", help="these alone")
    parser.add_argument("--short", action="store_true", help="the form that `make test` has")
    parser.add_argument("--most", type=int, help="so many places of each command, at random, instead of all")
    parser.add_argument("--seed", type=int, help="of what is at random; without one it differs each time")
    parser.add_argument("--results", type=Path, help="file of JSON lines to add to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
