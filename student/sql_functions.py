"""Functions for DuckDB that return the answers of students."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW

from pipeline.arrays import Floats
from pipeline.errors import QueryError, did_you_mean
from pipeline.tasks.target import softmax
from student.predict.labels import labels
from student.predict.multi_task import MultiTaskPredictor, tasks_in
from student.predict.predictor import Predictor
from student.predict.text_answers import Prediction

OWN_OR_ANOTHERS = "select 1 from duckdb_functions() where function_name = ? and function_type = 'scalar'"


def register(connection: duckdb.DuckDBPyConnection, *runs: str | Path) -> dict[str, tuple[str, ...]]:
    """Adds the functions of students to a connection, and replaces those that it has.

    ``predict(run, text)`` returns a label (VARCHAR), and ``scores(run, text)`` the calibrated probabilities in the
    order of the labels, or only the score (FLOAT[]). For pairs, use ``predict(run, text1, text2)``.
    ``predict_or_abstain`` returns ``abstain`` below the margin of the certificate (``distill certify``). All return
    null for null. For a cascade, ``stage`` returns the name of the stage that answers.

    For a student that labels words, ``predict`` returns the labels joined with spaces, and ``spans(run, text)`` structs
    of ``text``, ``start``, ``end`` and ``label``. A text may be a list of words.

    For a run of several tasks, ``predict_tasks(run, text)`` returns a map from the task to a struct of ``label`` and
    ``scores``. Each text is read once. ``predict('run/task', text)`` and the others answer for one of its tasks.

    Args:
        connection: any connection to DuckDB.
        runs: folders of finished runs, or files of students. Queries use the same spelling.

    Returns: The labels of each student in the order of its scores, by its name in queries.

    Raises:
        IntegrityError: if a folder or a file holds no student.
        QueryError: if the database has a macro of such a name, or a function of another connection, such as a cursor.
    """
    students: dict[str, _Student | _Tasks] = {}
    for run in runs:
        students |= _opened(run)
    for name, (kind, answer) in FUNCTIONS.items():
        function = _function(name, students, answer)
        try:
            if connection.execute(OWN_OR_ANOTHERS, [name]).fetchall():
                connection.remove_function(name)
            # without the types of its arguments it takes one text or two
            connection.create_function(name, function, return_type=kind, type=ARROW)
        except (duckdb.InvalidInputException, duckdb.CatalogException) as error:
            raise QueryError(
                f"register: the database has a {name!r} that this connection cannot replace. Drop it if it is a "
                "macro. If it is a function of another connection or cursor, register there"
            ) from error
    return {name: student.target.names for name, student in students.items() if isinstance(student, _Student)}


def _opened(run: str | Path) -> dict[str, "_Student | _Tasks"]:
    """The students of a run by the names that queries have for them."""
    lock = Lock()
    if not tasks_in(Path(run)):
        return {str(run): _Student(Predictor(run), lock)}
    predictor = MultiTaskPredictor(run)
    alone = {f"{run}/{task}": _Student(one, lock) for task, one in predictor.predictors.items()}
    return {str(run): _Tasks(predictor, lock)} | alone


class _Tasks:
    """The students of several tasks, which answer from one reading."""

    def __init__(self, predictor: MultiTaskPredictor, lock: Lock) -> None:
        self.predictor, self._lock = predictor, lock

    def answers(self, texts: tuple[pa.ChunkedArray, ...]) -> list[dict[str, Prediction]]:
        with self._lock:
            return self.predictor(*(text.to_pylist() for text in texts))


class _Student:
    """A student that answers one thread at a time: a tokenizer is not safe for several, and torch uses all cores."""

    def __init__(self, predictor: Predictor, lock: Lock) -> None:
        self.predictor, self.lock = predictor, lock
        self.target = self.predictor.info.target
        self.labels_words = self.predictor.info.labels_words

    @cached_property
    def threshold(self) -> float:
        return self.predictor.backend.certified_threshold()

    def logits(self, texts: tuple[pa.ChunkedArray, ...]) -> Floats:
        with self.lock:
            return self.predictor.calibrated_logits(*(text.to_pylist() for text in texts))

    def columns(self, texts: tuple[pa.ChunkedArray, ...]) -> dict[str, pa.Array]:
        with self.lock:
            return self.predictor.columns(*(text.to_pylist() for text in texts))


def _function(
    name: str, students: dict[str, _Student | _Tasks], answer: Callable[..., pa.Array]
) -> Callable[..., pa.Array]:
    def call(*arguments: pa.ChunkedArray) -> pa.Array:
        if not 2 <= len(arguments) <= 3:
            raise QueryError(f"{name}(run, text), or {name}(run, text1, text2) for pairs")
        runs = arguments[0].unique().to_pylist()
        if len(runs) > 1:
            raise QueryError(f"{name}: the run must be the same for all rows, not {runs[0]!r} and {runs[1]!r}")
        run = next(iter(runs), None)
        if run not in students:
            raise QueryError(f"{name}: no run {run!r} is registered. {did_you_mean(str(run), students)}")
        student = students[run]
        if isinstance(student, _Tasks) != (answer is _answers_of_tasks):
            raise QueryError(f"{name}: {_wrong_number_of_tasks(run, student)}")
        wrong = next((text.type for text in arguments[1:] if not _is_text(text.type)), None)
        if wrong is not None and not (isinstance(student, _Student) and student.labels_words and _is_words(wrong)):
            raise QueryError(f"{name}: the text is {wrong}, not text. Cast it with ::varchar.")
        return answer(student, arguments[1:])

    return call


def _wrong_number_of_tasks(run: str, student: _Student | _Tasks) -> str:
    if isinstance(student, _Student):
        return f"{run!r} is of one task. Use predict({run!r}, text)"
    task = next(iter(student.predictor.predictors))
    return f"{run!r} is of several tasks. Use predict_tasks({run!r}, text), or one task, such as '{run}/{task}'"


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null))


def _is_words(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) and _is_text(kind.value_type)


def _labels(student: _Student, texts: tuple[pa.ChunkedArray, ...], threshold: float | None = None) -> pa.Array:
    if student.labels_words:
        return pc.binary_join(student.columns(texts)["labels"], " ")
    if not student.target.has_classes:
        call = "scores(run, text)" if student.target.has_labels else "scores(run, text)[1]"
        raise QueryError(f"predict: the task of this student {student.target.type.why_no_classes}. Use {call}")
    return labels(student.target, softmax(student.logits(texts)), threshold)


def _labels_or_abstain(student: _Student, texts: tuple[pa.ChunkedArray, ...]) -> pa.Array:
    return _labels(student, texts, student.threshold)


def _spans(student: _Student, texts: tuple[pa.ChunkedArray, ...]) -> pa.Array:
    if not student.labels_words:
        raise QueryError("spans: this student predicts labels of whole texts. Use predict(run, text)")
    return student.columns(texts)["spans"]


def _stage(student: _Student, texts: tuple[pa.ChunkedArray, ...]) -> pa.Array:
    if "stage" not in student.predictor.answers.names:
        raise QueryError("stage: this is one student and no cascade. Use predict(run, text)")
    return student.columns(texts)["stage"]


def _scores(student: _Student, texts: tuple[pa.ChunkedArray, ...]) -> pa.Array:
    if student.labels_words:
        raise QueryError("scores: this student labels words. Use predict(run, text), or spans(run, text)")
    logits_NC = student.logits(texts)
    scores_NC = student.target.answers(logits_NC)
    width = scores_NC.shape[1]
    offsets = pa.array(range(0, scores_NC.size + 1, width), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(scores_NC.reshape(-1)))


def _answers_of_tasks(tasks: _Tasks, texts: tuple[pa.ChunkedArray, ...]) -> pa.Array:
    rows = ([(task, _label_and_scores(one)) for task, one in answer.items()] for answer in tasks.answers(texts))
    return pa.array(rows, pa.map_(pa.string(), LABEL_AND_SCORES))


def _label_and_scores(answer: Prediction) -> dict[str, Any]:
    if "words" in answer:
        return {"label": " ".join(word["label"] for word in answer["words"]), "scores": None}
    if "score" in answer:
        return {"label": None, "scores": [answer["score"]]}
    label = answer["label"]
    return {"label": None if isinstance(label, list) else label, "scores": list(answer["probabilities"].values())}


LABEL_AND_SCORES = pa.struct([("label", pa.string()), ("scores", pa.list_(pa.float32()))])
FUNCTIONS: dict[str, tuple[str, Callable[..., pa.Array]]] = {
    "predict": ("VARCHAR", _labels),
    "predict_or_abstain": ("VARCHAR", _labels_or_abstain),
    "scores": ("FLOAT[]", _scores),
    "stage": ("VARCHAR", _stage),
    "predict_tasks": ('MAP(VARCHAR, STRUCT("label" VARCHAR, "scores" FLOAT[]))', _answers_of_tasks),
    "spans": ('STRUCT("text" VARCHAR, "start" INTEGER, "end" INTEGER, "label" VARCHAR)[]', _spans),
}
