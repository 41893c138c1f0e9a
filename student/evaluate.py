"""Evaluation of a student against gold and its teacher's predictions, on a set or on the rows of a file."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.file_names import CONFIG_FILE, RUN_RECORD
from pipeline.parsing import parse_model
from pipeline.record_file import Record, read_work_record
from pipeline.sets.open import LogitSet
from pipeline.settings import flag_name, given
from pipeline.sources import load_source, load_word_source, sentences
from pipeline.sources.gold import NO_SCORE
from pipeline.sources.row_files import open_rows
from pipeline.tasks.target import Target, TargetKind
from pipeline.tasks.task import TRAIN, Task, TaskType
from pipeline.training.run_record import STUDENTS, label_columns
from student.data import Examples
from student.lessons import KINDS, PRETRAINING
from student.lessons.lesson import L, R, S, TaskLesson
from student.model.architecture import TaskConfig
from student.model.config_file import read_encoder_config
from student.model.student import default_device, load_student
from student.predict.file import accepted_names, known_task
from student.predict.labels import label_bias, read_costs
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings
from student.trained_sets import evaluated_sets
from student.vocabulary import as_run_reads

Evaluation = dict[str, Any]
Texts = tuple[list[str], list[str] | None]
Teacher = Callable[[Task, Target, Texts, int], Floats]  # the last is the maximum input length in tokens
TYPES: dict[TargetKind, TaskType] = {
    "classes": "classification",
    "labels": "multilabel",
    "bins": "regression",
    "score": "regression",
}
# Common names of the column of gold, in addition to the task's own.
USUAL_LABELS = ("label", "labels", "score", "tags", "ner_tags")


def evaluate(config: EvaluateSettings) -> dict[str, Evaluation]:
    """Evaluates a run on the dev splits of its logit set, or with several sets against the mixture of their teachers.

    Returns: Per split, or per TASK/SPLIT for a run of several tasks: ``rows`` (how many were scored, and how many were
        left out and why), ``gold`` (the task's metrics), ``interval`` (their 95 % bootstrap intervals), ``teacher``
        (the teacher's metrics), ``majority`` (those of always predicting the most frequent class) and ``glue`` (GLUE's
        single number for the task). Also ``labels`` (macro F1, and how many labels are ever predicted), ``decided``
        (the metrics of `predict`'s labels, with thresholds and costs if there are any), ``by_label`` (precision, recall
        and F1 of each of these labels), ``bins`` (other scores for bins) and ``fidelity`` (agreement with the teacher,
        KL divergence from it).

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
    own, found = logit_set.record.metrics, {}
    for split, rows in dev_examples(config.run, student.config, logit_set).items():
        found[split] = kind.evaluate_split(student, rows, bias_C, own)
        # A set may lack rows of its task: those without a prediction of an imported teacher.
        missing = logit_set.record.splits[split].rows - len(rows)
        if missing > 0:
            found[split]["rows"]["not_in_the_set"] = missing
    return found


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


def dev_examples(run: Path, config: TaskConfig, logit_set: LogitSet) -> dict[str, Any]:
    """The dev splits of a set, as the student of a run reads them.

    Raises:
        DataError: if there are none.
        FingerprintMismatchError: if the set is not one that the student can read.
    """
    kind = KINDS[config.rows]
    kind.check_readable(config, logit_set)
    logit_set = as_run_reads(logit_set, run, config)
    # Scores on training rows would only measure memorisation.
    splits = [split for split in logit_set.splits if split != TRAIN]
    if not splits:
        raise DataError(f"{logit_set.root}: has no dev split to evaluate on")
    return {split: kind.as_read(kind.scored(logit_set, kind.read(logit_set, split)), config) for split in splits}


def evaluate_file(config: EvaluateSettings, teacher: Teacher | None = None) -> tuple[dict[str, Any], pa.Table]:
    """Evaluates a run on the rows of a file with gold, which no set has to hold.

    Args:
        config: names the run and the file.
        teacher: returns the logits of a teacher for texts. Default: ``teacher`` and ``fidelity`` are empty.

    Returns:
        By the name of the file what `evaluate` gives for a split. And the rows, with the columns of a `Source`'s
        splits.

    Raises:
        ConfigError: if the run has several tasks, the manifest is of another task, a named column is missing, or the
            teacher does not fit.
        DataError: if the file cannot be read, or its labels are not the student's, naming the rows.
    """
    assert config.data is not None
    record = read_work_record(config.run / RUN_RECORD) if (config.run / RUN_RECORD).is_file() else {}
    if STUDENTS in record:
        folders = ", ".join(str(config.run / name) for name in record[STUDENTS])
        raise ConfigError(
            f"--data: {config.run} has a student for each of several tasks. Give the folder of one: {folders}."
        )
    predictor = Predictor(config.run, costs=read_costs(config.cost))
    student = predictor.student
    task = _task_of_file(config, config.data, predictor)
    load = load_word_source if task.type == "token_labels" else load_source
    rows = load(task, config.data, tuple(task.splits)).splits[config.data.name]
    gold = rows.column("score" if task.type == "regression" else "label")
    if gold.null_count == len(gold):
        raise DataError(f"{config.data}: no row has gold. Fill its column of labels.")
    kind = KINDS[student.config.rows]
    read = kind.of_source(rows, predictor.reader, student.config)
    if teacher is not None:
        if not isinstance(read, Examples):
            raise ConfigError(
                f"--teacher {config.teacher}: is of texts, but the student labels words. Remove the flag."
            )
        target, length = student.config.target, student.config.max_seq_length
        read = replace(read, teacher_NC=teacher(task, target, sentences(rows), length))
    return {config.data.name: kind.evaluate_split(student, read, predictor.bias_C)}, rows


def _task_of_file(config: EvaluateSettings, file: Path, predictor: Predictor) -> Task:
    """The student's task with the file as its only split, and with the columns that the file has."""
    student: TaskConfig = predictor.student.config
    kind: TaskType = "token_labels" if student.rows == "token_labels" else TYPES[student.target.kind]
    known, names = known_task(predictor, config.manifest), student.target.names
    # The gold of the task must have the meaning of the student's predictions.
    if known is not None and (known.type != kind or (kind != "regression" and known.labels != names)):
        if config.manifest is not None:
            raise ConfigError(
                f"--manifest {config.manifest}: its labels are {_labels(known.type, known.labels)}, but the student "
                f"predicts {_labels(kind, names)}. Give the manifest of the student's task."
            )
        # A user's own task may have the name of a shipped one.
        known = None
    columns = _columns(config, open_rows(file, known.headerless_tsv_columns if known else ()).names, known, predictor)
    if known is not None:
        own = known.model_dump()
    else:
        own = {"name": student.task, "type": kind, "metrics": student.metrics}
        own |= {"score_range": (_least_score(predictor), math.inf)} if kind == "regression" else {"labels": names}
    task = parse_model(Task, own | {"columns": columns, "splits": {"file": None}}, str(file))
    return task.model_copy(update={"splits": {file.name: None}})


def _least_score(predictor: Predictor) -> float:
    """Returns the least number that a column of gold scores may contain. Scales may be wider than what was seen."""
    calibration = predictor.info.calibration
    low = -math.inf if calibration is None or calibration.score_range is None else calibration.score_range[0]
    # Where a scale is above -1, that number stands for missing gold.
    return math.nextafter(NO_SCORE, 0) if low > NO_SCORE else -math.inf


def _columns(
    config: EvaluateSettings, names: Sequence[str], known: Task | None, predictor: Predictor
) -> dict[str, str]:
    """The names of the columns of texts and gold.

    Raises:
        ConfigError: naming the flag for each column that is missing.
    """
    texts = accepted_names(known, predictor)
    if config.text2 is not None and len(texts) == 1:
        raise ConfigError(f"--text2 {config.text2}: this student takes one text. Remove the flag.")
    wanted = {"--text": (config.text, texts[0])} | ({"--text2": (config.text2, texts[1])} if len(texts) > 1 else {})
    own = (known.columns.label or ()) if known is not None else label_columns(config.run)
    labels = tuple(dict.fromkeys((*own, *USUAL_LABELS)))
    target = predictor.info.target
    has_column_for_each = target.has_label_lists and not {*labels} & {*names} and {*target.names} <= {*names}
    if config.label is not None or not has_column_for_each:
        wanted["--label"] = (config.label, labels)
    found: dict[str, str] = {}
    problems = []
    for flag, (named, accepted) in wanted.items():
        name = next((name for name in ((named,) if named else accepted) if name in names), None)
        if name is not None:
            found[{"--text": "sentence1", "--text2": "sentence2", "--label": "label"}[flag]] = name
        elif named:
            problems.append(f"{flag} {named}: unknown column. {did_you_mean(named, names)}")
        else:
            usual = " or ".join(map(repr, accepted))
            problems.append(f"{flag}: no column {usual}. {did_you_mean(accepted[0], names)} Name the column.")
    raise_all(ConfigError, f"{config.data}: columns that are not there", problems)
    if len(set(found.values())) < len(found):
        raise ConfigError(
            f"{', '.join(wanted)}: {' and '.join(found.values())} are not different columns. Name a different "
            "column for each"
        )
    return found


def _labels(kind: TaskType, names: Sequence[str]) -> str:
    return "scores" if kind == "regression" else f"{kind} of {', '.join(names)}"
