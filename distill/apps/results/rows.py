"""The rows that every system of a task is fitted and scored on: those of its set that have gold, without variants."""

from dataclasses import dataclass

from pipeline.arrays import Floats, Ints
from pipeline.sets.reader import ExampleSet
from pipeline.sets.signals.logits import logits_of
from pipeline.sources import sentences
from pipeline.tasks.target import gold_arrays

COLUMNS = ("sentence1", "sentence2", "label", "score", "logits")
CHOSEN = "variant = 0 and (label is not null or score is not null)"


@dataclass(frozen=True)
class Rows:
    """A split's texts, gold, and what the teacher said.

    Attributes:
        texts1: the (first) sentences, N of them.
        texts2: the second sentences, or None for single ones.
        label_N: int64 gold classes, ``NO_LABEL`` for a task with scores.
        score_N: float32 gold scores, NaN for a task with labels.
        teacher_NC: float32 logits.
    """

    texts1: list[str]
    texts2: list[str] | None
    label_N: Ints
    score_N: Floats
    teacher_NC: Floats

    def __len__(self) -> int:
        return len(self.texts1)


def read_rows(logit_set: ExampleSet, split: str) -> Rows:
    """The rows of a split that have gold."""
    table = logit_set.read(split, COLUMNS, CHOSEN)
    logits_NC = logits_of(table, logit_set.record.target.num_logits)
    return Rows(*sentences(table), *gold_arrays(logit_set.record.target, table), logits_NC)
