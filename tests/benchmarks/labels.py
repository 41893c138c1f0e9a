"""A skewed task of six named classes and a multi-label one, from CSV to a student behind HTTP, with the times.

``DISTILL_DATA=glue python -m tests.benchmarks.labels FOLDER``. The texts are those of GLUE; a label says where a text
comes from, and the texts of the multi-label task are of one to three places. The teacher is a bag of words asked by
cross-validation, whose probabilities are imported: what is measured here is the way, not the teacher.
"""

import csv
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

from pipeline import console
from pipeline.files import make_folder
from pipeline.sources import load_source
from pipeline.tasks.task import load_task
from tests.helpers.commands import invoke
from tests.helpers.server import serving

PLACES = {"film": "sst2", "encyclopedia": "rte", "news": "mrpc", "grammar": "cola", "caption": "stsb", "puzzle": "wnli"}
SHARES = (0.55, 0.2, 0.12, 0.08, 0.035, 0.015)
ROWS = {"train": 2000, "validation": 600}
EPOCHS = ("--num-train-epochs", "8")
MANIFEST = """
name: {name}
type: {type}
columns: {{sentence1: text, label: label}}
labels: [{labels}]
metrics: [{metrics}]
splits: {{train: , validation: }}
"""
Rows = list[tuple[str, list[str]]]


def texts_of(split: str) -> dict[str, list[str]]:
    """The texts of each place."""
    sources = {place: load_source(load_task(task), splits=(split,)) for place, task in PLACES.items()}
    return {place: source.splits[split].column("sentence1").to_pylist() for place, source in sources.items()}


def rows_of(split: str, several: bool) -> Rows:
    """Texts with the places that they come from."""
    random = np.random.default_rng(len(split))
    texts = texts_of(split)
    rows: Rows = []
    for _ in range(ROWS[split]):
        count = random.integers(1, 4) if several else 1
        places = random.choice(list(PLACES), size=count, replace=False, p=SHARES).tolist()
        rows.append((" ".join(texts[place][random.integers(len(texts[place]))] for place in places), places))
    return rows


def write_task(folder: Path, name: str, splits: dict[str, Rows], metrics: str) -> None:
    """Writes a manifest and a CSV file for each split."""
    make_folder(folder)
    for split, rows in splits.items():
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("text", "label"), *((text, ",".join(places)) for text, places in rows)])
    kind = "multilabel" if name == "several" else "classification"
    labels = ", ".join(PLACES)
    (folder / "task.yaml").write_text(MANIFEST.format(name=name, type=kind, labels=labels, metrics=metrics))


def write_answers(folder: Path, splits: dict[str, Rows]) -> None:
    """Predictions of a bag of words for all rows. Those for training rows are made by cross-validation."""
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), OneVsRestClassifier(LogisticRegression(C=10)))
    texts = {split: [text for text, _ in rows] for split, rows in splits.items()}
    gold_NC = np.array([[place in places for place in PLACES] for _, places in splits["train"]]).astype(int)
    said = {
        "train": cross_val_predict(model, texts["train"], gold_NC, cv=4, method="predict_proba"),
        "validation": model.fit(texts["train"], gold_NC).predict_proba(texts["validation"]),
    }
    with (folder / "answers.jsonl").open("w", encoding="utf-8") as stream:
        for split, p_NC in said.items():
            if all(len(places) == 1 for _, places in splits["train"]):
                p_NC = p_NC / p_NC.sum(axis=1, keepdims=True)
            for row, p_C in enumerate(p_NC.tolist()):
                answer = {"split": split, "source_row": row, "probabilities": dict(zip(PLACES, p_C, strict=True))}
                stream.write(json.dumps(answer) + "\n")


def run(folder: Path, *arguments: object) -> Any:
    """What a command prints as JSON; None if it prints nothing."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, f"{folder}: {result.output}"
    return json.loads(result.stdout) if result.stdout else None


def ask(run_folder: Path, text: str = "A lovely film.") -> float:
    """Starts a server, sends one request, and returns the seconds until its response."""
    with serving(run_folder) as (_, url):
        body = json.dumps({"inputs": text}).encode()
        request = urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"})  # noqa: S310
        start = time.perf_counter()
        with urllib.request.urlopen(request) as response:  # noqa: S310
            assert json.load(response)[0]["score"] > 0
        return time.perf_counter() - start


def timed_step(seconds: dict[str, float], step: str, act: Callable[[], Any]) -> Any:
    """What a step gives; the processor time of this process is kept in ``seconds``."""
    start = time.process_time()
    answer = act()
    seconds[step] = time.process_time() - start
    return answer


def measure(folder: Path, name: str, metrics: str, students: dict[str, tuple[str, ...]]) -> list[list[Any]]:
    """The scores of a task's students, and the seconds of each step; processor time of this process."""
    splits = {split: rows_of(split, several=name == "several") for split in ROWS}
    seconds: dict[str, float] = {}
    timed = partial(timed_step, seconds)
    write_task(folder, name, splits, metrics)
    timed("bag of words", lambda: write_answers(folder, splits))
    task = ("--manifest", folder / "task.yaml", "--data", folder, "--store", folder / "store")
    timed(
        "import", lambda: run(folder, "import", folder / "answers.jsonl", *task, "--teacher", "words", "--name", name)
    )
    table: list[list[Any]] = []

    def shown(scores: dict[str, float]) -> list[str]:
        return [f"{100 * scores[metric]:.1f}" for metric in metrics.split(", ")]

    for student, flags in students.items():
        where = ("--task", name, "--store", folder / "store", "--output-dir", folder / student)
        timed(f"train {student}", partial(run, folder, "train-student", *where, *EPOCHS, *flags))
        parts = run(folder, "evaluate", folder / student, "--store", folder / "store")["validation"]
        rare = parts["by_label"]["puzzle"]["recall"]
        table.append([student, *shown(parts["gold"]), f"{100 * rare:.0f}"])
        table += [["  as it decides", *shown(parts["decided"]), ""]] if parts["decided"] else []
    table.insert(0, ["teacher", *shown(parts["teacher"]), ""])
    ask(folder / next(iter(students)))
    console.note(", ".join(f"{step}: {value:.1f} s" for step, value in seconds.items()))
    return table


def main(folder: Path) -> None:
    """Prints a table for each task."""
    plain: dict[str, tuple[str, ...]] = {"plain": ()}
    skewed = plain | {"balanced": ("--class-weights", "balanced", "--metric-for-best-model", "macro_f1")}
    for name, metrics, students in (
        ("skewed", "accuracy, macro_f1", skewed),
        ("several", "micro_f1, macro_f1", plain),
    ):
        rows = measure(folder / name, name, metrics, students)
        console.print_table([name, *metrics.split(", "), "recall of puzzle"], rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
