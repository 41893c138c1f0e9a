"""Two small generated tasks, ``opinion`` (single texts) and ``roles`` (pairs): word order alone decides the labels."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np

from pipeline.files import make_folder, write_text

THINGS = ("food", "service", "music", "view", "staff", "room", "coffee", "wine")
GOOD = ("great", "lovely", "superb", "pleasant", "perfect", "charming")
BAD = ("awful", "dull", "terrible", "rude", "cold", "boring")
NAMES = ("anna", "ben", "clara", "david", "emma", "felix")
VERBS = ("paid", "called", "helped", "followed", "praised", "blamed")
Row = dict[str, str | int]


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


def write_toy_tasks(folder: Path, train_rows: int = 4000, validation_rows: int = 500) -> list[str]:
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
