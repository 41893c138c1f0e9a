"""Labelled words where only the context decides: a teacher, students of logits and of gold alone, and a lookup table.

``python -m tests.benchmarks.words FOLDER --model-name-or-path MODEL``. The rows are those of `tests.helpers.entities`:
the same names are persons, places and firms, and a fifth of them occur in the validation rows alone.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

from pipeline import console
from pipeline.files import make_folder
from tests.helpers.commands import invoke
from tests.helpers.entities import lookup_span_f1, write_entities

ROWS = 2000, 500
SEEDS = "42", "43"
STUDENTS: dict[str, tuple[str, ...]] = {
    "student": (),
    "student of gold alone, from the teacher's vectors": ("--alpha", "1"),
    "student, from noise": ("--init", "noise"),
    "student of gold alone, from noise": ("--alpha", "1", "--init", "noise"),
}


def timed(*arguments: object) -> float:
    """Seconds that a command takes; one that fails ends the program."""
    start = time.perf_counter()
    done = invoke(*arguments)
    if done.exit_code:
        raise SystemExit(done.output)
    return time.perf_counter() - start


def main() -> None:
    """Makes, trains and measures all of it in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model-name-or-path", required=True)
    given = parser.parse_args()
    folder: Path = given.folder
    make_folder(folder)
    write_entities(folder, *ROWS)
    rows = ("--manifest", folder / "entities.yaml", "--data", folder, "--max-seq-length", "32")
    store, teacher = ("--store", folder / "store"), folder / "teacher"
    start = ("--model-name-or-path", given.model_name_or_path, "--output-dir", teacher, "--learning-rate", "1e-4")
    tuned = timed("finetune-teacher", *rows, *start)
    dumped = timed("teacher-dump", *rows, *store, "--model-name-or-path", teacher)
    record = json.loads((folder / "store/entities/distill.json").read_text())
    table: list[list[object]] = [
        ["most frequent label of the word", lookup_span_f1(folder), None],
        ["teacher", record["scores"]["validation"]["span_f1"], tuned],
        ["dump, with token vectors", None, dumped],
    ]
    for number, ((name, flags), seed) in enumerate(product(STUDENTS.items(), SEEDS)):
        run = folder / f"run-{number}"
        own = ("--output-dir", run, "--seed", seed, *flags)
        seconds = timed("train-student", "--task", "entities", *store, *own)
        scores = json.loads((run / "run.json").read_text())["result"]["evaluation"]["validation"]
        table.append([name, scores["gold"]["span_f1"], seconds])
    console.print_table(["", "span F1", "seconds"], table)


if __name__ == "__main__":
    main()
