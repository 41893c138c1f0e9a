"""The demo: two small generated tasks, each step a `distill` command in its own process, printed before it runs.

In both tasks the labels depend on the order of words that stand apart, so that bags of words and of n-grams only guess.
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

EPOCHS = {"opinion": 8, "roles": 10}
STUDENTS = ("cbow", "hybrid")
FLIPPED = {
    "opinion": [
        "the food was awful to me , but the view was superb to me .",
        "the food was superb to me , but the view was awful to me .",
    ],
    "roles": [
        "the baker anna from rome paid the judge ben from oslo .",
        "the pilot ben from paris was paid by the nurse anna from oslo .",
        "the baker anna from rome paid the judge ben from oslo .",
        "the pilot anna from paris was paid by the nurse ben from oslo .",
    ],
}
THINGS = ("food", "service", "music", "view", "staff", "room", "coffee", "wine", "garden", "soup", "bread", "pool")
GOOD = ("great", "lovely", "superb", "pleasant", "perfect", "charming", "fresh", "warm")
BAD = ("awful", "dull", "terrible", "rude", "cold", "boring", "dirty", "loud")
NAMES = ("anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo")
VERBS = ("paid", "called", "helped", "followed", "praised", "blamed", "thanked", "visited")
JOBS = ("baker", "pilot", "judge", "nurse")
CITIES = ("rome", "paris", "oslo", "cairo")
Row = dict[str, str | int]


@dataclass(frozen=True)
class DemoResult:
    """The outcome of a task of the demo: accuracies on rows that are not in training, and predictions of the Hybrid."""

    task: str
    majority: float
    students: dict[str, float]
    teacher: float
    ngrams: float
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
        evaluations[student] = json.loads(run_command(["evaluate", run, "--baseline", "--json"], folder))["validation"]
    predictions = json.loads(run_command(["predict", f"runs/{task}-hybrid", *FLIPPED[task], "--json"], folder))
    width = len(FLIPPED[task]) // len(predictions)
    texts = [" | ".join(FLIPPED[task][k : k + width]) for k in range(0, len(FLIPPED[task]), width)]
    return DemoResult(
        task,
        evaluations["hybrid"]["majority"]["accuracy"],
        {student: evaluations[student]["gold"]["accuracy"] for student in STUDENTS},
        evaluations["hybrid"]["teacher"]["accuracy"],
        evaluations["hybrid"]["baseline"]["scores"]["accuracy"],
        [(text, row["label"]) for text, row in zip(texts, predictions, strict=True)],
    )


def opinion(random: np.random.Generator) -> Row:
    """Returns a review with a good and a bad word between the same neighbours, of which the verdict decides its label.

    The verdict is in the main clause, after "but", or where "not" is not, four words before it.
    """
    good, bad = str(random.choice(GOOD)), str(random.choice(BAD))
    label = int(random.integers(2))
    verdict, aside = (good, bad) if label else (bad, good)
    first, second = random.choice(THINGS, 2, replace=False)
    forms = (
        f"the {first} was {aside} to me , but the {second} was {verdict} to me .",
        f"although the {first} was {aside} to me , the {second} was {verdict} to me .",
        f"the {first} was {verdict} to me , although the {second} was {aside} to me .",
        f"i would not call the {first} {aside} today , and i would call the {second} {verdict} today .",
        f"i would call the {first} {verdict} today , and i would not call the {second} {aside} today .",
    )
    return {"sentence1": forms[random.integers(len(forms))], "label": label}


def roles(random: np.random.Generator) -> Row:
    """Returns two sentences with the same names and the same verb, and whether the same person acts in both."""
    one, other = (str(name) for name in random.choice(NAMES, 2, replace=False))
    verb = str(random.choice(VERBS))
    label = int(random.integers(2))
    actor, receiver = (one, other) if label else (other, one)
    return {
        "sentence1": _act(random, one, verb, other),
        "sentence2": _act(random, actor, verb, receiver),
        "label": label,
    }


def _act(random: np.random.Generator, actor: str, verb: str, receiver: str) -> str:
    """A sentence in which no name stands beside the verb, with jobs and cities that mean nothing."""
    did, was = (f"the {random.choice(JOBS)} {name} from {random.choice(CITIES)}" for name in (actor, receiver))
    return (f"{did} {verb} {was} .", f"{was} was {verb} by {did} .")[random.integers(2)]


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
        known: set[tuple[str | int, ...]] = set()
        for split, count in (("train", train_rows), ("validation", validation_rows)):
            rows: list[Row] = []
            while len(rows) < count:
                row = make(random)
                key = tuple(row.values())
                # A row that is also in training would prove nothing about new ones.
                if key not in known:
                    known.add(key)
                    rows.append(row)
            write_text(folder / "data" / name / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
            sentences += [str(row[key]) for row in rows for key in ("sentence1", "sentence2") if key in row]
    return sentences
