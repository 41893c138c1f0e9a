"""How good a student is: against gold, and against what its teacher said."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import console
from pipeline.arrays import Floats
from pipeline.config import refuse_flags
from pipeline.errors import DataError, FingerprintMismatchError
from pipeline.query.mixture import open_sets
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.metrics import (
    bin_scores,
    bootstrap_intervals,
    class_summary,
    fidelity,
    glue_score,
    majority_scores,
    score_logits,
    scores_by_label,
)
from pipeline.tasks.task import Metric
from pipeline.training.run_record import RUN_RECORD, STUDENTS, RunRecord, read_run_record
from student.answers.labels import label_bias, read_costs
from student.config import CostFlags, EvaluateConfig
from student.data import Examples, as_read, load_dev, sorted_batches
from student.model.architecture import SentenceConfig, StudentConfig
from student.model.config_file import labels_words, read_encoder_config
from student.model.model import Student, default_device
from student.model.weights import CONFIG_FILE
from student.trained_sets import evaluated_sets
from student.words.evaluate import evaluate_words

BATCH_SIZE = 256


Evaluation = dict[str, Any]


def evaluate(config: EvaluateConfig) -> dict[str, Evaluation]:
    """Evaluates a run on the dev splits of its logit set; of several sets, against the mixture of their teachers.

    Returns:
        Per split (of a run of several tasks per TASK/SPLIT) ``gold`` (the task's metrics), ``interval`` (95 % bootstrap
        intervals of them), ``teacher`` (the teacher's), ``majority`` (always answering the commonest class), ``glue``
        (GLUE's one number for the task), ``labels`` (macro F1, and how many labels are ever predicted), ``decided``
        (the metrics of what `predict` says, by thresholds and costs, if there are any), ``by_label`` (precision, recall
        and F1 of each label, so decided), ``bins`` (other readings of binned scores) and ``fidelity`` (agreement with
        the teacher, KL divergence from it).

    Raises:
        DataError: if the set is gone.
        FingerprintMismatchError: if another one is in its place, or its ids come from another tokenizer.
    """
    if labels_words(config.run):
        return evaluate_words(config)
    record = read_run_record(config.run / RUN_RECORD)
    if STUDENTS in record:
        parts = {name: evaluate(config.model_copy(update={"run": config.run / name})) for name in record[STUDENTS]}
        return {f"{name}/{split}": scores for name, part in parts.items() for split, scores in part.items()}
    student = Student.load(config.run).to(default_device())
    if record["state"] != "finished":
        console.warn(f"{config.run}: not finished; these are the weights of its best epoch so far")
    logit_set = open_evaluated(record, config.set, config.store, config.allow_unverified)
    bias_C = label_bias(config.run, student.config.target, read_costs(config.cost))
    splits = dev_examples(student.config, logit_set)
    own = logit_set.record.metrics
    return {split: evaluate_split(student, rows, bias_C, own) for split, rows in splits.items()}


def evaluate_pretrained(config: EvaluateConfig) -> dict[str, dict[str, float]]:
    """Evaluates a pretraining run on what a set of its kind holds out, by default its own.

    Returns:
        See `evaluate_masked_words`; or per split the scores of `evaluate_vectors`.

    Raises:
        ConfigError: if costs of labels are given.
        DataError: if the set is gone.
        FingerprintMismatchError: if another is in its place, or its ids come from another tokenizer.
    """
    refuse_flags(config, CostFlags.model_fields, "is for labels, and a pretrained student has none")
    if isinstance(read_encoder_config(config.run / CONFIG_FILE), SentenceConfig):
        from student.kinds.sentences import evaluate_vector_run

        return evaluate_vector_run(config)
    from student.kinds.masked_words import evaluate_masked_words

    return evaluate_masked_words(config)


def open_evaluated(record: RunRecord, logits: str | None, store: Path, allow_unverified: bool = False) -> ExampleSet:
    """Opens the set that a run is to be measured on: the given one, or those it was trained on, mixed as they were.

    Raises:
        DataError: if a set is gone.
        FingerprintMismatchError: if another one is in its place.
    """
    mix = None if logits is not None else record["settings"].get("mix")
    return open_sets(evaluated_sets(record, logits, store), mix, allow_unverified)


def dev_examples(config: StudentConfig, logit_set: ExampleSet) -> dict[str, Examples]:
    """The dev splits of a set, as a student reads them.

    Raises:
        DataError: if there are none.
        FingerprintMismatchError: if the set is not one that the student can read.
    """
    check_readable(config, logit_set)
    splits = [split for split in logit_set.splits if split != "train"]
    if not splits:
        raise DataError(f"{logit_set.root}: has no dev split to evaluate on")
    return {split: as_read(load_dev(logit_set, split), config) for split in splits}


def check_readable(config: StudentConfig, logit_set: ExampleSet) -> None:
    """Raises FingerprintMismatchError if a set is not one that the student can read."""
    path, record = logit_set.root, logit_set.record
    if record.tokenizer.sha256 != config.tokenizer_sha256:
        raise FingerprintMismatchError(f"{path}: its token ids come from another tokenizer than the student's")
    check_same_task(config, logit_set)


def check_same_task(config: StudentConfig, logit_set: ExampleSet) -> None:
    """Raises FingerprintMismatchError if a student's answers do not mean what a set's do."""
    path, record = logit_set.root, logit_set.record
    if record.target != config.target:
        raise FingerprintMismatchError(f"{path}: its logits mean something else than the student's")
    if record.is_pair != config.is_pair:
        raise FingerprintMismatchError(f"{path}: one of the set and the student is for pairs, the other is not")


def evaluate_split(
    student: Student, examples: Examples, bias_C: Floats | None = None, own: Collection[Metric] | None = None
) -> Evaluation:
    """All that `evaluate` tells of one split.

    Args:
        student: on its device.
        examples: the rows.
        bias_C: added to the logits before labels are chosen.
        own: the task's metrics, without one by which alone the best epoch was chosen. (default: all of the student's)
    """
    config = student.config
    student_NC = student_logits(student, examples)
    gold = (examples.label_N, examples.score_N)
    scores = score_logits(config.metrics, config.target, student_NC, *gold)
    decided_NC = student_NC if bias_C is None else student_NC + bias_C
    return {
        "gold": scores,
        "interval": bootstrap_intervals(config.metrics, config.target, student_NC, *gold),
        "teacher": score_logits(config.metrics, config.target, examples.teacher_NC, *gold),
        "majority": majority_scores(config.metrics, config.target, *gold),
        "glue": glue_score({name: value for name, value in scores.items() if own is None or name in own}),
        "labels": class_summary(config.target, student_NC, examples.label_N),
        "decided": {} if bias_C is None else score_logits(config.metrics, config.target, decided_NC, *gold),
        "by_label": scores_by_label(config.target, decided_NC, examples.label_N),
        "bins": bin_scores(config.metrics, config.target, student_NC, examples.score_N),
        "fidelity": fidelity(config.target, student_NC, examples.teacher_NC),
    }


def score_student(student: Student, examples: Examples) -> dict[str, float]:
    """Returns the task's metrics of a student on examples with gold, by name."""
    logits_NC = student_logits(student, examples)
    return score_logits(student.config.metrics, student.config.target, logits_NC, examples.label_N, examples.score_N)


def student_logits(student: Student, examples: Examples) -> Floats:
    """Runs a student over examples; float32 logits [N, C] in their order."""
    logits_NC = np.empty((len(examples), student.config.target.num_logits), dtype=np.float32)
    student.eval()
    with torch.inference_mode():
        for rows in sorted_batches(examples.lengths, BATCH_SIZE):
            ids_T, starts_S = examples.batch(rows)
            logits_NC[rows] = student.logits(ids_T.to(student.device), starts_S.to(student.device)).cpu().numpy()
    return logits_NC
