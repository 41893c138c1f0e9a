"""What is compared: a student, its teacher or a baseline, as a function from texts to logits.

Shapes: N rows, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.arrays import Floats, Ints
from pipeline.sets.reader import ExampleSet
from pipeline.sets.signals.logits import logits_of
from pipeline.sources import sentences
from pipeline.tasks.target import Target, gold_arrays
from pipeline.tasks.task import Task

Predict = Callable[[Sequence[str], Sequence[str] | None], Floats]
SCORE = Target(kind="score", names=("score",))
KEPT = ("config.json", "model.safetensors", "model-*.safetensors", "tokenizer.json")
COLUMNS = ("sentence1", "sentence2", "label", "score", "logits")
CHOSEN = "variant = 0 and (label is not null or score is not null)"


@dataclass(frozen=True)
class System:
    """Something that reads sentences, or pairs, and labels or scores them.

    Attributes:
        target: what its logits mean.
        logits: float32 logits [N, C] of first sentences, and of second ones if the task has pairs.
        num_parameters: how many numbers it has.
        num_bytes: what has to be kept on disk to use it: weights, vocabulary, settings.
    """

    target: Target
    logits: Predict
    num_parameters: int
    num_bytes: int


def student_system(run: Path) -> System:
    """The student of a finished run, on the CPU."""
    from student.model.model import num_parameters
    from student.predict import Predictor

    predictor = Predictor(run)
    student = predictor.student.to("cpu")
    return System(student.config.target, predictor.logits, num_parameters(student), bytes_of(run))


def teacher_system(task: Task, folder: Path, logit_set: ExampleSet) -> System:
    """The teacher of a set, on the CPU, in float32."""
    from teacher.models.batches import tokens_per_batch
    from teacher.models.classifier import load_teacher
    from teacher.models.logits import teacher_logits

    record = logit_set.record
    labels = record.teacher.labels if record.target.has_labels else ()
    teacher = load_teacher(task, str(folder), None, labels, record.max_seq_length, record.windows)
    max_tokens = tokens_per_batch(torch.device("cpu"))

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        inputs = teacher.reader.tokenize(texts1, texts2, record.max_seq_length)
        with torch.inference_mode():
            return teacher_logits(teacher, inputs, max_tokens)

    return System(record.target, logits, teacher.num_parameters, bytes_of(folder))


def bytes_of(folder: Path) -> int:
    """Bytes of what a model needs to read text: settings, weights, tokenizer."""
    return sum(path.stat().st_size for name in KEPT for path in folder.glob(name))


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
