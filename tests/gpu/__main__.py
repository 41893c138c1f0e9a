"""``make gpu``: proves on a GPU what the tests prove on a CPU, and measures it. Nothing is downloaded.

Where an image brings its own torch: ``pip install --no-deps --no-build-isolation -e .``, then ``python -m tests.gpu``.
Prints each result as it comes and a table, with ``--json`` also a file; the exit code is 1 if a check fails.
``--device cpu`` tries the checks themselves where there is no GPU.
"""

import argparse
import faulthandler
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pipeline import console
from tests.gpu.checks import checks
from tests.gpu.speed import speed_checks
from tests.gpu.training import training_checks
from tests.gpu.world import make_world
from tests.helpers.tried_checks import tried

AT_ONCE = 6


def main(arguments: list[str]) -> int:
    """Runs the checks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--short", action="store_true", help="the form that `make test` has")
    parser.add_argument("--only", default="", help="regular expression for the names of the checks to run")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    if "distill-offline" not in {one.name for one in distributions()}:
        console.warn("distill is not installed: pip install --no-deps --no-build-isolation -e .")
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        console.warn("there is no CUDA GPU; --device cpu tries the checks without one")
        return 2
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    with TemporaryDirectory(prefix="distill-gpu-") as folder:
        rows, hidden_size, num_layers = (24, 32, 1) if options.short else (400, 256, 4)
        make_world(Path(folder), rows, hidden_size, num_layers)
        wanted = Path(folder), options.device, options.short
        dumps, trainings, speeds = (
            [(name, check) for name, check in make(*wanted) if re.search(options.only, name)]
            for make in (checks, training_checks, speed_checks)
        )
        # Dumps wait for processes, so that several at once save minutes. What is timed runs alone.
        with ThreadPoolExecutor(max(1, min(AT_ONCE, (os.cpu_count() or 1) // 2))) as pool:
            found = list(pool.map(tried, *zip(*dumps, strict=True))) if dumps else []
        found += [tried(name, check) for name, check in [*trainings, *speeds]]
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
