"""What a kind of set teaches, as `pretrain` needs it."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.sets.group_reader import GroupedSet
from pipeline.training.loop import Learner
from pipeline.training.run_record import RunRecord
from student.pretrain.stream import GroupStream


@dataclass(frozen=True)
class Lesson:
    """A set, and what learns from it.

    Attributes:
        stored: the set.
        stream: the batches of its train split.
        learner: makes a student, for so many steps, that is written to a folder.
        settings: of the set, which decide the weights.
        unused: fields of `PretrainConfig` that this kind of set has no use for.
        card: the README of a student, given it and the record of its run.
    """

    stored: GroupedSet
    stream: GroupStream[Any]
    learner: Callable[[int, Path], Learner]
    settings: dict[str, Any]
    unused: Set[str]
    card: Callable[[Any, RunRecord], str]
