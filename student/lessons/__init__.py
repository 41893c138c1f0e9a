"""The kinds of rows in stage two: those of students of tasks, and those of pretraining."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.sets.record import read_set_record
from pipeline.sets.record_parts import KindName
from pipeline.training.run_record import Metrics
from student.lessons.examples import ExampleLesson
from student.lessons.lesson import TaskLesson
from student.lessons.masked_words import MaskedWordTask, evaluate_masked_words
from student.lessons.pretraining import PretrainTask
from student.lessons.sentences import SentenceTask, evaluate_vector_run
from student.lessons.token_labels import TokenLabelLesson
from student.pretrain_settings import PretrainSettings

if TYPE_CHECKING:
    from accelerate import PartialState


class Pretraining(NamedTuple):
    """A kind of row that students are pretrained on.

    Attributes:
        task: makes the task of the training loop from settings, the set's folder, and the processes.
        evaluate: scores a finished run on a set, given the folders of both and whether the set may be unverified.
    """

    task: "Callable[[PretrainSettings, Path, PartialState], PretrainTask[Any, Any]]"
    evaluate: Callable[[Path, Path, bool], Metrics]


KINDS: dict[KindName, TaskLesson[Any, Any, Any]] = {"examples": ExampleLesson(), "token_labels": TokenLabelLesson()}
PRETRAINING: dict[KindName, Pretraining] = {
    "masked_words": Pretraining(MaskedWordTask, evaluate_masked_words),
    "sentences": Pretraining(SentenceTask, evaluate_vector_run),
}


def kind_of_set(path: Path) -> TaskLesson[Any, Any, Any]:
    """Returns the kind of row of a set.

    For a set that students of tasks do not support, returns examples, which refuse it.
    """
    return KINDS.get(read_set_record(path).kind, KINDS["examples"])


def pretraining_of_set(path: Path) -> Pretraining:
    """Returns the pretraining for a set.

    For a set that pretraining does not support, returns masked words, which refuse it.
    """
    return PRETRAINING.get(read_set_record(path).kind, PRETRAINING["masked_words"])
