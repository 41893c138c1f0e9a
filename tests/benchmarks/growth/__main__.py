"""Time and memory by the number of rows: python -m tests.benchmarks.growth [--rows N ...] [--steps STEP ...] [--draw].

Measures what ``docs/growth.json`` lacks, every point in a process of its own; steps that are named are measured again.
``--draw`` makes ``docs/growth.svg`` and ``docs/growth.md`` of it. Ten million rows need about 10 GB of disk.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from distill.apps.timing import processor
from pipeline import console
from tests.benchmarks.growth.data import WORDS, write_task
from tests.benchmarks.growth.steps import STEPS

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
RESULTS = Path("docs/growth.json")
MADE_BY = {"push": "pushed", "train": "run", "finetune": "finetuned"}  # folders that make a second try a short one


def measure(step: str, folder: Path, num_rows: int) -> dict[str, float]:
    """Runs a step in a fresh process; writes the task, and dumps it, if that has not been done in the folder."""
    if not (folder / "growth.yaml").exists():
        write_task(folder, num_rows)
    if step == "dump":
        shutil.rmtree(folder / "store", ignore_errors=True)
    elif not (folder / "store/growth/README.md").exists():
        measure("dump", folder, num_rows)
    shutil.rmtree(folder / MADE_BY.get(step, "nothing"), ignore_errors=True)
    command = [sys.executable, "-m", "tests.benchmarks.growth.steps", step, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measures, or draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--folder", type=Path, help="where the tasks are written, and kept (default: a temporary one)")
    parser.add_argument("--draw", action="store_true", help="draw what has been measured")
    arguments = parser.parse_args()
    points = json.loads(RESULTS.read_text())["points"] if RESULTS.exists() else {}
    if arguments.draw:
        from tests.benchmarks.growth.draw import draw, write_table

        draw(points, RESULTS.with_suffix(".svg"))
        write_table(points, RESULTS.with_suffix(".md"), len(WORDS))
        return
    root = arguments.folder or Path(mkdtemp())
    for num_rows in arguments.rows:
        for step in arguments.steps or STEPS:
            if arguments.steps or str(num_rows) not in points.get(step, {}):
                figures = measure(step, root / str(num_rows), num_rows)
                console.note(f"{step}, {num_rows:,} rows: {figures['seconds']} s, {console.size(figures['bytes'])}")
                points.setdefault(step, {})[str(num_rows)] = figures
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps({"processor": processor(), "points": points}, indent=1) + "\n")
        if arguments.folder is None:
            shutil.rmtree(root / str(num_rows), ignore_errors=True)


if __name__ == "__main__":
    main()
