"""``distill evaluate --data``: a student scored on a file of rows with gold, which no set has to hold."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.file_names import RUN_RECORD
from pipeline.parsing import parse_model
from pipeline.record_file import read_work_record
from pipeline.sources import load_source, load_word_source
from pipeline.sources.row_files import open_rows
from pipeline.tasks.target import TargetKind
from pipeline.tasks.task import Task, TaskType
from pipeline.training.run_record import STUDENTS, label_columns
from student.lessons import KINDS
from student.model.architecture import TaskConfig
from student.predict.file import accepted_names, known_task
from student.predict.labels import read_costs
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings

TYPES: dict[TargetKind, TaskType] = {
    "classes": "classification",
    "labels": "multilabel",
    "bins": "regression",
    "score": "regression",
}
# Common names of the column of gold, in addition to the task's own.
USUAL_LABELS = ("label", "labels", "score", "tags", "ner_tags")
ANY_SCORE = (-math.inf, math.inf)  # a student does not store the range of its task's scores


def evaluate_file(config: EvaluateSettings) -> tuple[dict[str, Any], pa.Table]:
    """Evaluates a run on the rows of a file.

    Returns:
        By the name of the file what `student.evaluate.evaluate` gives for a split. ``teacher`` and ``fidelity`` are
        empty, since a file has no teacher. And the rows, with the columns of a `Source`'s splits.

    Raises:
        ConfigError: if the run has several tasks, the manifest is of another task, or a named column is missing.
        DataError: if the file cannot be read, or its labels are not the student's, naming the rows.
    """
    assert config.data is not None
    _require_one_task(config.run)
    predictor = Predictor(config.run, costs=read_costs(config.cost))
    student = predictor.student
    rows = _read_labelled(config, predictor)
    kind = KINDS[student.config.rows]
    read = kind.of_source(rows, predictor.reader, student.config)
    return {config.data.name: kind.evaluate_split(student, read, predictor.bias_C)}, rows


def _read_labelled(config: EvaluateSettings, predictor: Predictor) -> pa.Table:
    assert config.data is not None
    task = _task_of_file(config, config.data, predictor)
    load = load_word_source if task.type == "token_labels" else load_source
    rows = load(task, config.data, tuple(task.splits)).splits[config.data.name]
    gold = rows.column("score" if task.type == "regression" else "label")
    if gold.null_count == len(gold):
        raise DataError(f"{config.data}: no row has gold. Fill its column of labels.")
    return rows


def _require_one_task(run: Path) -> None:
    record = read_work_record(run / RUN_RECORD) if (run / RUN_RECORD).is_file() else {}
    if STUDENTS in record:
        folders = ", ".join(str(run / name) for name in record[STUDENTS])
        raise ConfigError(f"--data: {run} has a student for each of several tasks. Give the folder of one: {folders}.")


def _task_of_file(config: EvaluateSettings, file: Path, predictor: Predictor) -> Task:
    """The student's task with the file as its only split, and with the columns that the file has."""
    student: TaskConfig = predictor.student.config
    known = known_task(predictor, config.manifest)
    if known is not None and not _is_of(known, student):
        if config.manifest is not None:
            raise ConfigError(
                f"--manifest {config.manifest}: its labels are {_labels(known.type, known.labels)}, but the student "
                f"predicts {_labels(_type_of(student), student.target.names)}. Give the manifest of the student's task."
            )
        # A user's own task may have the name of a shipped one.
        known = None
    names = open_rows(file, known.headerless_tsv_columns if known else ()).names
    columns = _columns(config, file, names, known, predictor)
    own = known.model_dump() if known is not None else _task_values(student)
    return parse_model(Task, own | {"columns": columns, "splits": {"file": None}}, str(file)).model_copy(
        update={"splits": {file.name: None}}
    )


def _columns(
    config: EvaluateSettings, file: Path, names: Sequence[str], known: Task | None, predictor: Predictor
) -> dict[str, str]:
    """The names of the columns of texts and gold.

    Raises:
        ConfigError: naming the flag for each column that is missing.
    """
    texts = accepted_names(known, predictor)
    if config.text2 is not None and len(texts) == 1:
        raise ConfigError(f"--text2 {config.text2}: this student takes one text. Remove the flag.")
    wanted = {"--text": (config.text, texts[0])} | ({"--text2": (config.text2, texts[1])} if len(texts) > 1 else {})
    labels = _label_names(known, predictor, config.run)
    if config.label is not None or not _has_column_for_each_label(predictor, names, labels):
        wanted["--label"] = (config.label, labels)
    found: dict[str, str] = {}
    problems = []
    for flag, (given, accepted) in wanted.items():
        name = next((name for name in ((given,) if given else accepted) if name in names), None)
        if name is not None:
            found[{"--text": "sentence1", "--text2": "sentence2", "--label": "label"}[flag]] = name
        elif given:
            problems.append(f"{flag} {given}: unknown column. {did_you_mean(given, names)}")
        else:
            usual = " or ".join(map(repr, accepted))
            problems.append(f"{flag}: no column {usual}. {did_you_mean(accepted[0], names)} Name the column.")
    raise_all(ConfigError, f"{file}: columns that are not there", problems)
    if len(set(found.values())) < len(found):
        raise ConfigError(
            f"{', '.join(wanted)}: {' and '.join(found.values())} are not different columns. Name a different "
            "column for each"
        )
    return found


def _label_names(known: Task | None, predictor: Predictor, run: Path) -> tuple[str, ...]:
    """The names that the column of gold may have: the task's, the run's, the usual ones."""
    own = (known.columns.label or ()) if known is not None else label_columns(run)
    return tuple(dict.fromkeys((*own, *USUAL_LABELS)))


def _has_column_for_each_label(predictor: Predictor, names: Sequence[str], labels: Sequence[str]) -> bool:
    target = predictor.info.target
    return target.has_label_lists and not {*labels} & {*names} and {*target.names} <= {*names}


def _task_values(student: TaskConfig) -> dict[str, Any]:
    """Returns what a student stores of its task, as the keys of a manifest."""
    kind = _type_of(student)
    values = {"name": student.task, "type": kind, "metrics": student.metrics}
    if kind == "regression":
        return values | {"score_range": ANY_SCORE}
    return values | {"labels": student.target.names}


def _type_of(student: TaskConfig) -> TaskType:
    return "token_labels" if student.rows == "token_labels" else TYPES[student.target.kind]


def _is_of(task: Task, student: TaskConfig) -> bool:
    """Whether the gold of a task has the meaning of a student's predictions."""
    if task.type != _type_of(student):
        return False
    return task.type == "regression" or task.labels == student.target.names


def _labels(kind: TaskType, names: Sequence[str]) -> str:
    return "scores" if kind == "regression" else f"{kind} of {', '.join(names)}"
