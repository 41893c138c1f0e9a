"""``make gpu``: proves on a GPU what the tests prove on a CPU. Nothing is downloaded.

Prints a table, with ``--json`` also a file; the exit code is 1 if a check fails. ``--device cpu`` tries the checks
themselves where there is no GPU.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline import console
from tests.gpu.checks import Check, checks
from tests.gpu.world import make_world


def tried(name: str, check: Check) -> dict[str, Any]:
    """The result of a check as a row of the table."""
    start = time.monotonic()
    row: dict[str, Any] = {"check": name, "value": None, "bound": None, "unit": "", "problem": ""}
    try:
        value, bound, unit = check()
        is_good = bound is None or value <= bound
        row |= {"value": value, "bound": bound, "unit": unit, "result": "passed" if is_good else "failed"}
    except Exception as error:  # noqa: BLE001  (one failure must not hide the other checks)
        row |= {"result": "failed", "problem": f"{type(error).__name__}: {error}"}
    return row | {"seconds": time.monotonic() - start}


def main(arguments: list[str]) -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--short", action="store_true", help="the form that `make test` has")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        console.warn("there is no CUDA GPU; --device cpu tries the checks without one")
        return 2
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    with TemporaryDirectory(prefix="distill-gpu-") as folder:
        rows, hidden_size, num_layers = (24, 32, 1) if options.short else (400, 256, 4)
        make_world(Path(folder), rows, hidden_size, num_layers)
        found = [tried(name, check) for name, check in checks(Path(folder), options.device, options.short)]
    table = [[row["check"], row["result"], row["value"], row["bound"], row["unit"], row["seconds"]] for row in found]
    console.print_table(
        ["check", "result", "value", "at most", "", "seconds"], table, title=f"{device}, torch {torch.__version__}"
    )
    for row in found:
        if row["problem"]:
            console.warn(f"{row['check']}: {row['problem']}")
    if options.json:
        options.json.write_text(
            json.dumps({"device": device, "torch": torch.__version__, "checks": found}, indent=2) + "\n"
        )
    return int(any(row["result"] == "failed" for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
