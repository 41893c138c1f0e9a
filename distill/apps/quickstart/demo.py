"""The demo: two small generated tasks, each step a `distill` command in its own process, printed before it runs.

In both tasks the labels depend on the order of words alone, so that a bag of words can only guess.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from distill.apps.cells import run_command
from pipeline import console
from pipeline.files import make_folder, write_text

EPOCHS = {"opinion": 4, "roles": 10}
STUDENTS = ("cbow", "hybrid")
FLIPPED = {
    "opinion": ["the food was awful but the view was superb .", "the food was superb but the view was awful ."],
    "roles": ["anna paid ben .", "ben was paid by anna .", "anna paid ben .", "anna was paid by ben ."],
}
THINGS = ("food", "service", "music", "view", "staff", "room", "coffee", "wine")
GOOD = ("great", "lovely", "superb", "pleasant", "perfect", "charming")
BAD = ("awful", "dull", "terrible", "rude", "cold", "boring")
NAMES = ("anna", "ben", "clara", "david", "emma", "felix")
VERBS = ("paid", "called", "helped", "followed", "praised", "blamed")
Row = dict[str, str | int]


@dataclass(frozen=True)
class DemoResult:
    """The outcome of a task of the demo: accuracies on its dev split, and two predictions of the Hybrid student."""

    task: str
    majority: float
    students: dict[str, float]
    teacher: float
    predictions: list[tuple[str, str]]


def run_demo(folder: Path) -> list[DemoResult]:
    """Runs both tasks in ``folder``. A repeated call resumes after the last finished step.

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
    run_command(["finetune-teacher", *source, *bert, *epochs], folder)
    run_command(["teacher-dump", *source, "--model-name-or-path", f"teachers/{task}"], folder)
    query = (
        f"select argmax(logits) = label as teacher_is_right, count(*) as n, avg(entropy(logits)) as entropy "
        f"from {task} where split = 'train' group by all order by all"
    )
    console.stderr.print(run_command(["sql", query], folder), end="", markup=False, highlight=False)
    evaluations = {}
    for student in STUDENTS:
        run = f"runs/{task}-{student}"
        # Bigrams would give CBOW some word order.
        flags = ("--embedding", student, "--num-bigrams", "0")
        run_command(["train-student", "--task", task, *flags, "--output-dir", run], folder)
        evaluations[student] = json.loads(run_command(["evaluate", run, "--json"], folder))["validation"]
    predictions = json.loads(run_command(["predict", f"runs/{task}-hybrid", *FLIPPED[task], "--json"], folder))
    width = len(FLIPPED[task]) // len(predictions)
    texts = [" | ".join(FLIPPED[task][k : k + width]) for k in range(0, len(FLIPPED[task]), width)]
    return DemoResult(
        task,
        evaluations["hybrid"]["majority"]["accuracy"],
        {student: evaluations[student]["gold"]["accuracy"] for student in STUDENTS},
        evaluations["hybrid"]["teacher"]["accuracy"],
        [(text, row["label"]) for text, row in zip(texts, predictions, strict=True)],
    )


def opinion(random: np.random.Generator) -> Row:
    """Returns a review with one good and one bad word. The word in the main clause or after "but" decides its label."""
    good, bad = str(random.choice(GOOD)), str(random.choice(BAD))
    label = int(random.integers(2))
    verdict, aside = (good, bad) if label else (bad, good)
    first, second = random.choice(THINGS, 2, replace=False)
    forms = (
        f"the {first} was {aside} but the {second} was {verdict} .",
        f"although the {first} was {aside} , the {second} was {verdict} .",
        f"the {first} was {verdict} although the {second} was {aside} .",
    )
    return {"sentence1": forms[random.integers(len(forms))], "label": label}


def roles(random: np.random.Generator) -> Row:
    """Returns two sentences with the same people and the same verb, and whether the same person acts in both."""
    one, other = (str(name) for name in random.choice(NAMES, 2, replace=False))
    verb = str(random.choice(VERBS))
    label = int(random.integers(2))
    actor, receiver = (one, other) if label else (other, one)
    first = (f"{one} {verb} {other} .", f"{other} was {verb} by {one} .")[random.integers(2)]
    second = (f"{actor} {verb} {receiver} .", f"{receiver} was {verb} by {actor} .")[random.integers(2)]
    return {"sentence1": first, "sentence2": second, "label": label}


TASKS: dict[str, Callable[[np.random.Generator], Row]] = {"opinion": opinion, "roles": roles}


def write_demo_data(folder: Path, train_rows: int = 4000, validation_rows: int = 500) -> list[str]:
    """Writes manifest and rows of each task: ``NAME.yaml`` and ``data/NAME/SPLIT.jsonl``.

    Returns:
        Every sentence, for a vocabulary.
    """
    sentences = []
    for number, (name, make) in enumerate(TASKS.items()):
        make_folder(folder / "data" / name)
        manifest = files("distill.apps.quickstart").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        write_text(folder / f"{name}.yaml", manifest)
        # A seed per task: the demo's data and scores are the same on every machine.
        random = np.random.default_rng(number)
        for split, count in (("train", train_rows), ("validation", validation_rows)):
            rows = [make(random) for _ in range(count)]
            write_text(folder / "data" / name / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            sentences += [str(row[key]) for row in rows for key in ("sentence1", "sentence2") if key in row]
    return sentences
