"""The compared systems, a student, its teacher or a baseline, as functions from texts to logits, and their rows.

Shapes: N rows, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Floats, Ints
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.rows import logits_of
from pipeline.sources import sentences
from pipeline.tasks.target import Target, gold_arrays
from pipeline.tasks.task import TRAIN, Task

Predict = Callable[[Sequence[str], Sequence[str] | None], Floats]
SCORE = Target(kind="score", names=("score",))
WEIGHT_FILES = ("model.safetensors", "model-*.safetensors")
STORED_FILES = ("config.json", *WEIGHT_FILES, "tokenizer.json")
COLUMNS = ("source_row", "sentence1", "sentence2", "label", "score", "logits")
CHOSEN = "variant = 0 and (label is not null or score is not null)"


@dataclass(frozen=True)
class System:
    """A model that labels or scores sentences or pairs.

    Attributes:
        target: what its logits mean.
        logits: float32 logits [N, C] of first sentences, and of second ones if the task has pairs.
        num_parameters: the number of its parameters.
        num_bytes: the size on disk of everything that it needs: weights, vocabulary, settings.
    """

    target: Target
    logits: Predict
    num_parameters: int
    num_bytes: int


def student_system(run: Path) -> System:
    """The student of a finished run, on the CPU."""
    from student.model.student import num_parameters
    from student.predict.predictor import Predictor

    predictor = Predictor(run)
    student = predictor.student.to("cpu")
    return System(student.config.target, predictor.logits, num_parameters(student), bytes_of(run))


def teacher_system(task: Task, name: str, logit_set: ExampleSet) -> System:
    """The teacher of a set, a folder or a hub id, on the CPU, in float32."""
    from teacher.models.batches import tokens_per_batch
    from teacher.models.classifier import load_teacher, teacher_logits

    record = logit_set.record
    labels = record.teacher.labels if record.target.has_labels else ()
    teacher = load_teacher(task, name, record.teacher.revision, labels, record.max_seq_length, record.windows)
    max_tokens = tokens_per_batch(torch.device("cpu"))

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        inputs = teacher.reader.tokenize(texts1, texts2, record.max_seq_length)
        with torch.inference_mode():
            return teacher_logits(teacher, inputs, max_tokens)

    return System(record.target, logits, teacher.num_parameters, bytes_of(Path(name)) or 4 * teacher.num_parameters)


def bytes_of(folder: Path, names: Sequence[str] = STORED_FILES) -> int:
    """Returns the size of the files that a model needs: settings, weights, tokenizer. Or of those with these names."""
    return sum(path.stat().st_size for name in names for path in folder.glob(name))


@dataclass(frozen=True)
class Rows:
    """A split's texts, gold, and the teacher's logits.

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

    @property
    def texts(self) -> list[str]:
        """All texts: the first sentences, and then the second ones."""
        return [*self.texts1, *(self.texts2 or ())]

    @property
    def num_characters(self) -> int:
        """The length of all texts."""
        return sum(map(len, self.texts))


def read_rows(logit_set: ExampleSet, split: str, among: Ints | None = None) -> Rows:
    """Returns the rows of a split with gold, without variants, either all or those with these source rows."""
    table = logit_set.read(split, COLUMNS, CHOSEN)
    if among is not None:
        table = table.filter(pa.array(np.isin(table.column("source_row").to_numpy(), among)))
    return _rows(logit_set, table)


def read_trained_rows(logit_set: ExampleSet, key_N2: Ints) -> Rows:
    """Returns the training rows with these source rows and variants, with or without gold."""
    table = logit_set.read(TRAIN, (*COLUMNS, "variant"))
    found_N2 = np.stack([table.column(name).to_numpy().astype(np.int64) for name in ("source_row", "variant")], axis=1)
    # One number for both, so that one search finds them.
    place = np.int64(1 + max(int(key_N2[:, 1].max()), int(found_N2[:, 1].max())))
    is_in_N = np.isin(found_N2[:, 0] * place + found_N2[:, 1], key_N2[:, 0] * place + key_N2[:, 1])
    return _rows(logit_set, table.filter(pa.array(is_in_N)))


def _rows(logit_set: ExampleSet, table: pa.Table) -> Rows:
    logits_NC = logits_of(table, logit_set.record.target.num_logits)
    return Rows(*sentences(table), *gold_arrays(logit_set.record.target, table), logits_NC)


def divided_rows(run: Path, logit_set: ExampleSet) -> tuple[Ints, Ints]:
    """Returns the rows of a run by its record: those that it learned from, and those that it held out.

    Returns:
        key_N2: source rows and variants to learn from. Calibration may use some of them instead.
        source_N: the source rows that it held out, empty without ``--held-out``.
    """
    from student.data import hold_out, load_chosen, with_groups

    settings = read_work_record(run / RUN_RECORD)["settings"]
    rows = load_chosen(logit_set, settings["query"])
    if settings["held_out"] is None:
        return rows.key_N2, np.empty(0, np.int64)
    rows = with_groups(logit_set, rows, settings["group"])
    trained, held_out = hold_out(rows, logit_set.record.target, settings["held_out"])
    return trained.key_N2, held_out.key_N2[:, 0]
