"""A task of scores from CSV to a student behind HTTP, with the times.

``DISTILL_DATA=glue python -m tests.benchmarks.scores FOLDER``. The texts are those of GLUE, as in `labels`; the score
of a text of eight sentences is the share of them that is of films. The teacher is a bag of words, imported.
"""

import csv
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

from pipeline import console
from pipeline.files import make_folder
from tests.benchmarks.labels import PLACES, ask, run, texts_of, timed_step

ROWS = {"train": 2000, "validation": 600}
MANIFEST = """
name: films
type: regression
columns: {sentence1: text, label: label}
score_range: [0, 1]
metrics: [pearson]
splits: {train: , validation: }
"""
Rows = list[tuple[str, float]]


def scored(split: str) -> Rows:
    """Texts of eight sentences, and the share of them that is of films."""
    random, texts = np.random.default_rng(len(split)), texts_of(split)
    others = [place for place in PLACES if place != "film"]
    rows: Rows = []
    for _ in range(ROWS[split]):
        films = random.integers(0, 9)
        places = ["film"] * films + random.choice(others, size=8 - films).tolist()
        random.shuffle(places)
        rows.append((" ".join(texts[place][random.integers(len(texts[place]))] for place in places), films / 8))
    return rows


def write(folder: Path, splits: dict[str, Rows]) -> None:
    """Writes the manifest, a CSV file for each split, and what a bag of words says, of train by cross-validation."""
    make_folder(folder)
    (folder / "task.yaml").write_text(MANIFEST)
    for split, rows in splits.items():
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("text", "label"), *rows])
    words = make_pipeline(TfidfVectorizer(sublinear_tf=True), Ridge())
    (texts, gold), (dev, _) = (zip(*splits[split], strict=True) for split in ROWS)
    said = {"train": cross_val_predict(words, texts, gold, cv=4), "validation": words.fit(texts, gold).predict(dev)}
    with (folder / "answers.jsonl").open("w", encoding="utf-8") as stream:
        for split, score_N in said.items():
            for row, score in enumerate(score_N.tolist()):
                stream.write(json.dumps({"split": split, "source_row": row, "score": score}) + "\n")


def main(folder: Path) -> None:
    """Prints Pearson's r of teacher and student, and the times."""
    splits, seconds = {split: scored(split) for split in ROWS}, dict[str, float]()
    timed = partial(timed_step, seconds)
    timed("bag of words", lambda: write(folder, splits))
    store, student = ("--store", folder / "store"), folder / "run"
    task = ("--manifest", folder / "task.yaml", "--data", folder, "--teacher", "words", "--name", "films")
    timed("import", lambda: run(folder, "import", folder / "answers.jsonl", *task, *store))
    where = ("--task", "films", *store, "--output-dir", student, "--num-train-epochs", 8)
    timed("training", lambda: run(folder, "train-student", *where))
    scores = run(folder, "evaluate", student, *store)["validation"]
    seconds["answer over HTTP"] = ask(student, splits["validation"][0][0])
    rows = [
        [who, f"{100 * scores[part]['pearson']:.1f}"] for who, part in (("teacher", "teacher"), ("student", "gold"))
    ]
    console.print_table(["scores", "Pearson"], rows)
    console.note(", ".join(f"{step}: {value:.2f} s" for step, value in seconds.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
