"""A generated task of labelled words, in which the context of a name decides its label."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from pipeline.arrays import Ragged
from pipeline.tasks.spans import word_scores, word_tallies

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
MANIFEST = f"""
name: entities
type: token_labels
columns: {{sentence1: tokens, label: tags}}
labels: [{", ".join(LABELS)}]
metrics: [span_f1, accuracy]
splits: {{train: , validation: }}
"""
NAMES = (
    *("paris", "london", "jordan", "washington", "chelsea", "lincoln", "austin", "florence", "sydney", "victoria"),
    *("georgia", "ford", "morgan", "disney", "madison", "brooklyn", "houston", "dallas", "hamilton", "milan"),
    *("phoenix", "virginia", "carolina", "logan", "bristol", "devon", "kent", "lancaster", "preston", "stafford"),
)
HELD_OUT = NAMES[::5]  # in validation alone
FORMS = (
    "{PER} met {PER} in {LOC} .",
    "{ORG} hired {PER} {WHEN} .",
    "{PER} left {ORG} {WHEN} .",
    "{LOC} lies north of {LOC} .",
    "shares of {ORG} fell after {PER} spoke .",
    "{WHEN} {PER} flew from {LOC} to {LOC} .",
    "{PER} , who runs {ORG} , lives in {LOC} .",
    "{LOC} , which borders {LOC} , is rainy .",
    "{ORG} , which owns {ORG} , is hiring .",
    "{PER} and {PER} work for {ORG} .",
    "the mayor of {LOC} thanked {ORG} .",
    "{ORG} sued {ORG} {WHEN} .",
)
WHEN = ("yesterday", "on monday", "last week", "in may", "today")


def sentence(random: np.random.Generator, names: tuple[str, ...]) -> dict[str, list[str]]:
    """A row: words, and the label of each; two names in a row may be one thing."""
    tokens: list[str] = []
    tags: list[str] = []
    for part in FORMS[random.integers(len(FORMS))].split():
        kind = part.strip("{}")
        if kind in ("PER", "LOC", "ORG"):
            words = [str(name) for name in random.choice(names, 1 + random.integers(2), replace=False)]
            tags += [f"{'I' if number else 'B'}-{kind}" for number in range(len(words))]
        else:
            words = str(random.choice(WHEN)).split() if kind == "WHEN" else [part]
            tags += ["O"] * len(words)
        tokens += words
    return {"tokens": tokens, "tags": tags}


def write_entities(folder: Path, train_rows: int, validation_rows: int) -> list[str]:
    """Writes ``entities.yaml``, ``train.jsonl`` and ``validation.jsonl``; returns every sentence, for a vocabulary."""
    (folder / "entities.yaml").write_text(MANIFEST)
    known = tuple(name for name in NAMES if name not in HELD_OUT)
    sentences = []
    for seed, (split, count, names) in enumerate(
        (("train", train_rows, known), ("validation", validation_rows, NAMES))
    ):
        random = np.random.default_rng(seed)
        rows = [sentence(random, names) for _ in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sentences += [" ".join(row["tokens"]) for row in rows]
    return sentences


def lookup_span_f1(folder: Path) -> float:
    """The span F1 on validation rows of saying of each word what it most often is in training, without any context."""
    train, validation = (
        [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    )
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        for word, label in zip(row["tokens"], row["tags"], strict=True):
            counts[word][label] += 1
    said = [[counts[word].most_common(1)[0][0] if word in counts else "O" for word in r["tokens"]] for r in validation]
    numbers = [
        Ragged.of([[LABELS.index(label) for label in row] for row in rows])
        for rows in (said, [r["tags"] for r in validation])
    ]
    return word_scores(("span_f1",), word_tallies(LABELS, *numbers))["span_f1"]
