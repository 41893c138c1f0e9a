"""``make hosts``: several hosts write the set of one process, whatever happens to them and to the network.

`tests/hosts.sh` starts this in namespaces of its own. Prints each result as it comes and a table. The exit code is 1 if
a check fails.
"""

import argparse
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline import console
from tests.benchmarks.cluster_kills import prepare
from tests.helpers.tried_checks import tried
from tests.hosts.checks import checks


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
