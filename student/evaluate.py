"""Evaluation of a student against gold, and against its teacher's predictions."""

from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.file_names import CONFIG_FILE, RUN_RECORD
from pipeline.record_file import Record, read_work_record
from pipeline.sets.open import LogitSet
from pipeline.settings import flag_name, given
from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import STUDENTS
from student.lessons import KINDS, PRETRAINING
from student.lessons.lesson import L, R, S, TaskLesson
from student.model.architecture import TaskConfig
from student.model.config_file import read_encoder_config
from student.model.student import default_device, load_student
from student.predict.labels import label_bias, read_costs
from student.run_settings import EvaluateSettings
from student.trained_sets import evaluated_sets

Evaluation = dict[str, Any]


def evaluate(config: EvaluateSettings) -> dict[str, Evaluation]:
    """Evaluates a run on the dev splits of its logit set, or with several sets against the mixture of their teachers.

    Returns: Per split, or per TASK/SPLIT for a run of several tasks: ``gold`` (the task's metrics), ``interval`` (their
        95 % bootstrap intervals), ``teacher`` (the teacher's metrics), ``majority`` (those of always predicting the
        most frequent class) and ``glue`` (GLUE's single number for the task). Also ``labels`` (macro F1, and how many
        labels are ever predicted), ``decided`` (the metrics of `predict`'s labels, with thresholds and costs if there
        are any), ``by_label`` (precision, recall and F1 of each of these labels), ``bins`` (other scores for bins) and
        ``fidelity`` (agreement with the teacher, KL divergence from it).

    Raises:
        DataError: if the set is gone.
        FingerprintMismatchError: if another one is in its place, or its ids come from another tokenizer.
    """
    record = read_work_record(config.run / RUN_RECORD)
    # A run of several tasks holds a folder per task, and each is evaluated like any other run.
    if STUDENTS in record:
        parts = {name: evaluate(config.model_copy(update={"run": config.run / name})) for name in record[STUDENTS]}
        return {f"{name}/{split}": scores for name, part in parts.items() for split, scores in part.items()}
    student = load_student(config.run).to(default_device())
    kind = KINDS[student.config.rows]
    if record["state"] != "finished":
        console.warn(f"{config.run}: not finished. These are the weights of its best epoch so far")
    logit_set = open_evaluated(kind, record, config.set, config.store, config.allow_unverified)
    bias_C = label_bias(config.run, student.config.target, read_costs(config.cost))
    splits = dev_examples(student.config, logit_set)
    own = logit_set.record.metrics
    return {split: kind.evaluate_split(student, rows, bias_C, own) for split, rows in splits.items()}


def evaluate_pretrained(config: EvaluateSettings) -> dict[str, dict[str, float]]:
    """Evaluates a pretraining run on what a set of its kind holds out, by default its own.

    Returns: See `evaluate_masked_words`, or per split the scores of `evaluate_vectors`.

    Raises:
        ConfigError: if costs of labels are given.
        DataError: if the set is gone.
        FingerprintMismatchError: if another is in its place, or its ids come from another tokenizer.
    """
    foreign = given(config).keys() - {"run", "set", "store", "allow_unverified", "json_output"}
    reason = "applies to labels, but a pretrained student predicts no labels"
    raise_all(ConfigError, str(config.run), [f"{flag_name(name)}: {reason}" for name in sorted(foreign)])
    root = evaluated_sets(read_work_record(config.run / RUN_RECORD), config.set, config.store)[0]
    evaluate_run = PRETRAINING[read_encoder_config(config.run / CONFIG_FILE).rows].evaluate
    return evaluate_run(config.run, root, config.allow_unverified)


def open_evaluated(
    kind: TaskLesson[L, R, S], record: Record, logits: str | None, store: Path, allow_unverified: bool = False
) -> L:
    """Opens the set that a run is to be measured on: the given one, or those it was trained on, mixed as they were.

    Raises:
        DataError: if a set is gone.
        FingerprintMismatchError: if another one is in its place.
    """
    # Weights of a mixture belong to the sets that the run was trained on.
    mix = None if logits is not None else record["settings"].get("mix")
    return kind.open_sets(evaluated_sets(record, logits, store), mix, allow_unverified)


def dev_examples(config: TaskConfig, logit_set: LogitSet) -> dict[str, Any]:
    """The dev splits of a set, as a student reads them.

    Raises:
        DataError: if there are none.
        FingerprintMismatchError: if the set is not one that the student can read.
    """
    kind = KINDS[config.rows]
    # Another tokenizer's ids would be read without an error and give meaningless scores.
    kind.check_readable(config, logit_set)
    # Scores on training rows would only measure memorisation.
    splits = [split for split in logit_set.splits if split != TRAIN]
    if not splits:
        raise DataError(f"{logit_set.root}: has no dev split to evaluate on")
    return {split: kind.as_read(kind.read(logit_set, split), config) for split in splits}
