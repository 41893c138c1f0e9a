"""Runs the demo: every step is a `distill` command in a process of its own, printed before it runs."""

import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.apps.demo.data import TASKS, write_demo_data
from pipeline import console
from pipeline.errors import DistillError
from pipeline.files import make_folder

EPOCHS = {"opinion": 4, "roles": 10}
STUDENTS = ("cbow", "hybrid")
FLIPPED = {
    "opinion": ["the food was awful but the view was superb .", "the food was superb but the view was awful ."],
    "roles": ["anna paid ben .", "ben was paid by anna .", "anna paid ben .", "anna was paid by ben ."],
}


@dataclass(frozen=True)
class DemoResult:
    """What a task of the demo came to: accuracies on its dev split, and two predictions of the Hybrid student."""

    task: str
    majority: float
    students: dict[str, float]
    teacher: float
    predictions: list[tuple[str, str]]


def run_demo(folder: Path) -> list[DemoResult]:
    """Runs both tasks in ``folder``; repeating it goes on from what is finished.

    Raises:
        DistillError: if a step fails.
    """
    from teacher.tiny import create_tiny_bert

    make_folder(folder)
    console.note(f"writing two generated tasks and an untrained tiny BERT to {folder}")
    create_tiny_bert(folder / "bert", write_demo_data(folder))
    return [_run_task(folder, task) for task in TASKS]


def _run_task(folder: Path, task: str) -> DemoResult:
    source = ["--manifest", f"{task}.yaml", "--data", "data"]
    epochs = ["--num-train-epochs", str(EPOCHS[task]), "--learning-rate", "5e-4", "--warmup-steps", "100"]
    bert = ["--model-name-or-path", "bert", "--output-dir", f"teachers/{task}"]
    _distill(folder, "finetune-teacher", *source, *bert, *epochs)
    _distill(folder, "teacher-dump", *source, "--model-name-or-path", f"teachers/{task}")
    query = (
        f"select argmax(logits) = label as teacher_is_right, count(*) as n, avg(entropy(logits)) as entropy "
        f"from {task} where split = 'train' group by all order by all"
    )
    console.stderr.print(_distill(folder, "sql", query), end="", markup=False, highlight=False)
    evaluations = {}
    for student in STUDENTS:
        run = f"runs/{task}-{student}"
        flags = ("--embedding", student, "--num-bigrams", "0")  # pairs of tokens would tell CBOW of order, too
        _distill(folder, "train-student", "--task", task, *flags, "--output-dir", run)
        evaluations[student] = json.loads(_distill(folder, "evaluate", run, "--json"))["validation"]
    predictions = json.loads(_distill(folder, "predict", f"runs/{task}-hybrid", *FLIPPED[task], "--json"))
    width = len(FLIPPED[task]) // len(predictions)
    texts = [" | ".join(FLIPPED[task][k : k + width]) for k in range(0, len(FLIPPED[task]), width)]
    return DemoResult(
        task,
        evaluations["hybrid"]["majority"]["accuracy"],
        {student: evaluations[student]["gold"]["accuracy"] for student in STUDENTS},
        evaluations["hybrid"]["teacher"]["accuracy"],
        [(text, row["label"]) for text, row in zip(texts, predictions, strict=True)],
    )


def _distill(folder: Path, *arguments: str) -> str:
    """Runs one command and returns what it prints; the two stages never share a process."""
    console.stderr.print(f"[bold]$ distill {shlex.join(arguments)}[/]", soft_wrap=True, markup=True)
    start = time.perf_counter()
    command: list[Any] = [sys.executable, "-P", "-m", "distill", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise DistillError(f"the step failed:\n{done.stderr.strip()}")
    console.note(f"  {time.perf_counter() - start:.0f} s")
    return done.stdout
