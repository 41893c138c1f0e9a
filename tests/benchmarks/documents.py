"""Documents of 2,000 words: a teacher that reads their beginning, and one that reads them by windows.

``DISTILL_DATA=glue python -m tests.benchmarks.documents FOLDER TEACHER``, a teacher of SST-2. A document is made of
SST-2's texts, of which three to seven of ten are positive; its label is that of most. Training documents are of its
training texts, the others of its dev texts, which the teacher has not been taught.
"""

import csv
import sys
import time
from pathlib import Path

import numpy as np

from pipeline import console
from pipeline.files import make_folder
from pipeline.sources import load_source
from pipeline.tasks.task import load_task
from tests.benchmarks.labels import ask, run

ROWS, WORDS = {"train": 200, "validation": 100}, 2000
MANIFEST = """
name: documents
type: classification
columns: {sentence1: text, label: label}
labels: [negative, positive]
metrics: [accuracy]
splits: {train: , validation: }
"""
WAYS: dict[str, tuple[object, ...]] = {"the beginning": (), "windows": ("--doc-stride", 32)}


def documents(split: str) -> list[tuple[str, str]]:
    """Documents and their labels."""
    random, table = np.random.default_rng(len(split)), load_source(load_task("sst2"), None, (split,)).splits[split]
    label_N, texts = table.column("label").to_numpy(), table.column("sentence1").to_pylist()
    rows = []
    for _ in range(ROWS[split]):
        share = random.choice([0.3, 0.4, 0.6, 0.7])
        words: list[str] = []
        while len(words) < WORDS:
            wanted = int(random.random() < share)
            words += texts[random.choice(np.flatnonzero(label_N == wanted))].split()
        rows.append((" ".join(words), "positive" if share > 0.5 else "negative"))
    return rows


def main(folder: Path, teacher: Path) -> None:
    """Prints accuracies of teachers and students, and seconds on the clock; the dump tells what a bag of words has."""
    make_folder(folder)
    (folder / "task.yaml").write_text(MANIFEST)
    splits = {split: documents(split) for split in ROWS}
    for split, texts in splits.items():
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("text", "label"), *texts])
    rows = []
    for name, flags in WAYS.items():
        store, student, start = ("--store", folder / "store"), folder / name, time.monotonic()
        task = ("--manifest", folder / "task.yaml", "--data", folder, "--name", name.replace(" ", "-"), *flags)
        run(folder, "teacher-dump", *task, "--model-name-or-path", teacher, "--precision", "bf16", *store)
        dumped = time.monotonic()
        where = ("--task", name.replace(" ", "-"), *store, "--output-dir", student)
        run(folder, "train-student", *where, "--window-size", 64, "--learning-rate", 3e-3)
        trained = time.monotonic()
        scores = run(folder, "evaluate", student, *store)["validation"]
        answers = [f"{100 * scores[part]['accuracy']:.1f}" for part in ("teacher", "gold")]
        rows.append([name, *answers, f"{dumped - start:.0f}", f"{trained - dumped:.0f}"])
    console.print_table(["read", "teacher", "student", "dump, s", "training, s"], rows)
    console.note(f"answer over HTTP: {ask(student, splits['validation'][0][0]):.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
