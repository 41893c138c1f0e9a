"""``distill check``: compares a teacher's current logits with those that a set stores.

The teacher runs twice on a sample, in batches of different sizes. The difference between these two runs shows the
rounding noise of this machine, against which the difference to the stored logits is measured. Shapes: N rows, C logits.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Floats
from pipeline.devices import processes
from pipeline.errors import ConfigError, DataError
from pipeline.sets.files import require_shards
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import find_set
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import COLLECTED
from pipeline.sets.signals.rows import logits_of
from pipeline.sources import sentences
from pipeline.sql.read_only_query import open_files, select, to_arrow
from pipeline.tasks.metrics import fidelity
from pipeline.tasks.target import Target
from pipeline.tasks.task import TRAIN, Task, load_task_of_set
from teacher.dump.rows import head_settings
from teacher.models.batches import tokens_per_batch
from teacher.models.classifier import Teacher, load_teacher, teacher_logits
from teacher.models.loaded import inference_mode, keep_head_in_float32, weights_sha256
from teacher.settings import CheckSettings

TIMES_NOISE, LEAST_TOLERANCE = 4, 1e-3
# The second run's batches are this many times smaller.
OTHER_BATCHES = 8

SAMPLE = """
select split, source_row, variant, sentence1, sentence2, logits from examples
where not (split = 'train' and source_row >= {first_collected})
order by md5(concat_ws(':', {seed}, split, source_row, variant)) limit {sample}
"""


@dataclass(frozen=True)
class Difference:
    """The difference of two runs for the same rows: the maximum, the mean, and the numbers of `fidelity`."""

    largest: float
    mean: float
    fidelity: dict[str, float]


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    Attributes:
        rows: number of checked rows.
        same_weights: whether the teacher has the recorded weights.
        live: the difference of two runs now.
        stored: the difference of the first run now and the set.
        worst_row: split, source row and variant of the row with the largest difference from the set.
        tolerance: the largest accepted ``stored.largest``.
    """

    rows: int
    same_weights: bool
    live: Difference
    stored: Difference
    worst_row: tuple[str, int, int]
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the teacher's outputs equal the stored ones."""
        return self.same_weights and self.stored.largest <= self.tolerance


def check(config: CheckSettings) -> Check:
    """Returns the differences between a set's logits and those of its teacher today, on a sample of rows.

    Raises:
        ConfigError: if the set is of another task.
        DataError: if the teacher is no longer at its location.
        IntegrityError: if a file of the set does not match its record.
    """
    logit_set = ExampleSet.open(find_set(config.set, config.store), config.allow_unverified)
    record = logit_set.record
    if record.teacher.is_imported:
        raise ConfigError(f"{logit_set.root}: its answers were imported, so there is no teacher to run again")
    task = load_task_of_set(logit_set.root, record.dataset_name, config.manifest)
    if task.name != record.dataset_name:
        raise ConfigError(f"--manifest: describes task {task.name!r}, but the set is of {record.dataset_name!r}")
    teacher = _load(task, record, config.model_name_or_path, config.model_revision)
    require_shards(logit_set.root, record, record.shards)
    # The last rows of `train` may have the answers of a cascade, which no teacher can repeat.
    collected = int(record.unlabelled.settings.get(COLLECTED, 0)) if record.unlabelled else 0
    first_collected = (record.splits[TRAIN].rows if TRAIN in record.splits else 0) - collected
    query = SAMPLE.format(seed=config.seed, sample=config.sample, first_collected=first_collected)
    files = [logit_set.root / shard.path for shard in record.shards]
    with open_files({"examples": files}, query=query) as connection:
        rows = to_arrow(select(connection, query))
    device = processes().device
    # The record states whether the head ran in float32, and the check has to compute the logits in the same way.
    if head_settings(record.precision).items() <= record.settings.items():
        keep_head_in_float32(teacher.model)
    teacher.model.to(device)
    inputs = teacher.reader.tokenize(*sentences(rows), record.max_seq_length)
    usual = tokens_per_batch(device)
    with inference_mode(device, record.precision):
        # Other batch sizes choose other matrix kernels, which is what differs most between machines.
        now_NC, again_NC = (teacher_logits(teacher, inputs, tokens) for tokens in (usual, usual // OTHER_BATCHES))
    stored_NC = logits_of(rows, record.target.num_logits)
    live = _difference(record.target, now_NC, again_NC)
    worst = int(np.abs(now_NC - stored_NC).max(axis=1).argmax())
    key = rows.select(["split", "source_row", "variant"]).slice(worst, 1).to_pylist()[0]
    return Check(
        rows=rows.num_rows,
        same_weights=weights_sha256(teacher.model) == record.teacher.weights_sha256,
        live=live,
        stored=_difference(record.target, now_NC, stored_NC),
        worst_row=(key["split"], key["source_row"], key["variant"]),
        # Two equal runs would allow no difference at all, although another CPU always has some.
        tolerance=config.tolerance or max(TIMES_NOISE * live.largest, LEAST_TOLERANCE),
    )


def _load(task: Task, record: SetRecord, name_or_path: str | None, revision: str | None) -> Teacher:
    """Returns the teacher of a set, from its old folder or from the one in the flags."""
    name = name_or_path or record.teacher.name
    revision = revision or (None if name_or_path else record.teacher.revision)
    labels = record.teacher.labels if record.target.has_labels else ()
    try:
        teacher = load_teacher(task, name, revision, labels, record.max_seq_length, record.windows)
    except DataError as error:
        raise DataError(f"{error}. If the teacher was moved, give its location with --model-name-or-path") from error
    if teacher.target != record.target:
        raise DataError(f"teacher {name}: outputs {', '.join(teacher.target.names)}, which differs from the set")
    return teacher


def _difference(target: Target, a_NC: Floats, b_NC: Floats) -> Difference:
    difference_NC = np.abs(a_NC.astype(np.float64) - b_NC)
    return Difference(float(difference_NC.max()), float(difference_NC.mean()), fidelity(target, a_NC, b_NC))
