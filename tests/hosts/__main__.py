"""``make hosts``: several hosts write the set of one process, whatever happens to them and to the network.

`tests/hosts.sh` starts this in namespaces of its own. Prints each result as it comes and a table. The exit code is 1 if
a check fails.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline import console
from tests.benchmarks.cluster_kills import prepare
from tests.hosts.checks import checks
from tests.hosts.trial import Check


def tried(name: str, check: Check) -> dict[str, Any]:
    """The result of a check as a row of the table."""
    start = time.monotonic()
    row: dict[str, Any] = {"check": name, "result": "failed", "wrong": None, "files": None, "commands": None}
    problem = ""
    try:
        found = check()
        row |= found._asdict() | {"result": "failed" if found.wrong else "passed"}
    except Exception as error:  # noqa: BLE001  (one failure must not hide the other checks)
        problem = f"{type(error).__name__}: {error}"
    row |= {"seconds": time.monotonic() - start, "problem": problem}
    sys.stderr.write(json.dumps(row) + "\n")
    return row


def main(arguments: list[str]) -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests/hosts.sh python -m tests.hosts")
    parser.add_argument("--only", default="", help="regular expression for the names of the checks to run")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="distill-hosts-") as folder:
        prepare(Path(folder))
        found = [tried(name, check) for name, check in checks(Path(folder)) if re.search(options.only, name)]
    columns = ["check", "result", "wrong", "files", "commands", "seconds"]
    console.print_table(
        ["check", "result", "files lost or different", "of", "commands", "seconds"],
        [[row[column] for column in columns] for row in found],
    )
    return int(any(row["result"] == "failed" for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
