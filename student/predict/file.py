"""``distill predict --file``: writes the answers to a file's rows to a file, or answers rows of JSON as they arrive."""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import console
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.files import sha256
from pipeline.sources.columns import blank, column_name, plain, row_numbers
from pipeline.sources.delimited_rows import MAX_ROW_BYTES
from pipeline.sources.json_rows import parsed_lines
from pipeline.sources.row_files import RowFile, joined_schema, open_rows
from pipeline.tasks.task import Task, load_task, task_names
from pipeline.tasks.text_drift import Drift, drifts
from student.predict.multi_task import AnyPredictor, MultiTaskPredictor, answer_names, cascade_of, members
from student.predict.parts import write_in_parts
from student.predict.predictor import Predictor
from student.run_settings import PredictSettings
from student.texts import BLANK, has_text

SentenceColumns = tuple[list[str], list[str] | None]
Row = dict[str, Any]


PLACE = "standard input"
# One read takes at most a mebibyte, so a fast writer cannot fill the memory.
BYTES_AT_ONCE = 2**20
MOST = 10_000  # inputs of a file that are compared: more change no verdict


def predict_file(config: PredictSettings, predictor: AnyPredictor) -> dict[str, Any]:
    """Writes the answers to a file's rows, or resumes it. All rows are checked before the first one is answered.

    Args:
        config: names the file, the output, and the columns to keep.
        predictor: of the run.

    Returns:
        ``rows``, ``output``, whether it was ``written`` now, the ``drift`` of its inputs, and for a cascade
        how many inputs were ``handed_on`` to its last stage in this call.

    Raises:
        ConfigError: if a column that is to be kept is not there.
        DataError: if rows cannot be read or contain no text, naming all of them.
        FingerprintMismatchError: if the output is there, made with other settings.
    """
    assert config.file is not None
    assert config.output is not None
    rows, names = open_texts(config, predictor)
    kept = kept_columns(config.columns, rows.names, str(rows.path), answer_names(predictor))
    settings = {"file": sha256(config.file), "texts": names, "columns": list(kept)} | _students(predictor)
    columns = list(dict.fromkeys([*names, *kept]))
    # A bad row near the end of a large file is reported within seconds and not after hours.
    sample = Sample()
    num_rows, schema = look_at_rows(predictor, rows, names, columns, sample)
    drift = warned(predictor, sample, str(config.file))
    with console.progress(num_rows, f"predict {config.file.name}") as steps:

        def answered(done: int) -> Iterator[pa.Table]:
            steps.advance(done)
            for table in rows.batches(columns, schema, done):
                beside = {output: table.column(name) for name, output in kept.items()}
                yield pa.table(beside | predictor.columns(*texts_of(table, names)))
                steps.advance(table.num_rows)

        written = write_in_parts(config.output, settings, answered)
    values = {"rows": num_rows, "output": str(config.output), "written": written, "drift": drift}
    if (cascade := cascade_of(predictor)) is not None:
        values["handed_on"] = cascade.handed_on()
    return values


def _students(predictor: AnyPredictor) -> dict[str, Any]:
    """Everything of the students that decides the answers."""
    if isinstance(predictor, MultiTaskPredictor):
        return {"students": {task: _students(one) for task, one in predictor.predictors.items()}}
    bias = None if predictor.bias_C is None else predictor.bias_C.tolist()
    return {"student": predictor.hashes(), "threshold": predictor.threshold, "bias": bias}


def read_texts(config: PredictSettings, predictor: AnyPredictor) -> SentenceColumns:
    """All texts of a file, the first sentences and the second ones or None. Errors as of `predict_file`."""
    assert config.file is not None
    rows, names = open_texts(config, predictor)
    sample = Sample()
    _, schema = look_at_rows(predictor, rows, names, names, sample)
    warned(predictor, sample, str(config.file))
    return texts_of(pa.concat_tables(rows.batches(names, schema)), names)


def open_texts(config: PredictSettings, predictor: AnyPredictor) -> tuple[RowFile, list[str]]:
    """Opens a file, and finds the columns of its texts.

    Raises:
        DataError: if there are no such columns.
    """
    assert config.file is not None
    tasks = known_tasks(predictor, config.manifest)
    rows = open_rows(config.file, next((task.headerless_tsv_columns for task in tasks.values() if task), ()))
    return rows, text_names(rows.names, str(config.file), accepted_by_all(predictor, tasks))


def known_tasks(predictor: AnyPredictor, manifest: Path | None) -> dict[str, Task | None]:
    """The task of each student, where it is a shipped one or its manifest was given."""
    return {name: known_task(one, manifest) for name, one in members(predictor).items()}


def known_task(predictor: Predictor, manifest: Path | None) -> Task | None:
    """The task of a student, where it is a shipped one or its manifest was given."""
    info = predictor.info
    if manifest is None:
        task = load_task(info.task) if info.task in task_names() else None
        return task if task is not None and task.is_pair == info.is_pair else None
    task = load_task(manifest=manifest)
    if task.is_pair != info.is_pair:
        raise ConfigError(f"--manifest {manifest}: one of the task {task.name!r} and the student is for pairs")
    return task


def accepted_by_all(predictor: AnyPredictor, tasks: Mapping[str, Task | None]) -> list[tuple[str, ...]]:
    """Returns the accepted names of the text columns, which are those of any of the tasks."""
    by_student = [accepted_names(tasks[name], one) for name, one in members(predictor).items()]
    return [tuple(dict.fromkeys(chain.from_iterable(names))) for names in zip(*by_student, strict=True)]


def accepted_names(task: Task | None, predictor: Predictor) -> Sequence[tuple[str, ...]]:
    """Returns the accepted names of the text columns: the task's, the run record's, or sentence1 (sentence2)."""
    usual = predictor.answers.accepted_columns()
    own = task.columns.texts if task is not None else predictor.backend.text_columns()
    # A record of another shape cannot name these columns.
    if own is None or len(own) != len(usual):
        return usual
    return [tuple(dict.fromkeys((*a, *b))) for a, b in zip(own, usual, strict=True)]


def text_names(names: Sequence[str], place: str, accepted: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the names of the table's columns that hold the texts.

    Raises:
        DataError: if there are no such columns.
    """
    problems: list[str] = []
    found = [column_name(names, place, each, problems) for each in accepted]
    raise_all(DataError, "no text to predict on", problems)
    return [name for name in found if name is not None]


def kept_columns(wanted: Sequence[str], names: Sequence[str], place: str, answers: Set[str]) -> dict[str, str]:
    """Returns the output names of the columns to keep. A column with the name of an answer becomes ``input_…``.

    Raises:
        ConfigError: for each that is not there, and if two would have one name.
    """
    # An input column named `label` would otherwise be overwritten by the prediction.
    kept = {name: f"input_{name}" if name in answers else name for name in wanted}
    problems = [f"{place} has no column {name!r}. {did_you_mean(name, names)}" for name in kept if name not in names]
    if len(set(kept.values())) < len(kept):
        problems.append(f"two columns would have one name: {', '.join(kept.values())}. Remove one of them")
    raise_all(ConfigError, "--columns", problems)
    return kept


def look_at_rows(
    predictor: AnyPredictor, rows: RowFile, names: Sequence[str], columns: Sequence[str], sample: "Sample | None" = None
) -> tuple[int, pa.Schema]:
    """Reads every row once, and returns the number of rows and the types of the columns. Adds to a sample of texts.

    Raises:
        DataError: naming the rows that cannot be read, or have no text.
    """
    problems: list[str] = []
    count, schemas = 0, dict[pa.Schema, None]()
    for table in rows.batches(columns):
        for name in names:
            # Rows are counted from 1 in messages, as editors count lines.
            for student in members(predictor).values():
                student.answers.check_column(table, str(rows.path), name, problems, count + 1)
        texts = [plain(table.column(name)) for name in names]
        # CSV has no nulls, so an empty cell has no more text than a null of Parquet.
        if all(pa.types.is_string(column.type) for column in texts):
            empty = reduce(pc.and_, map(blank, texts))
            if pc.any(empty).as_py():
                problems.append(f"{rows.path}: {BLANK} in {row_numbers(empty, count + 1)}")
        if sample is not None and not problems:
            # Only these become Python's texts, which would take longer for all rows than reading them.
            places = pa.array(sample.places(table.num_rows), pa.int64())
            sample.add(*(column.take(places).to_pylist() for column in texts))
        count += table.num_rows
        schemas[table.schema] = None
    # A column of the wrong type is reported once and not once per batch.
    raise_all(DataError, "rows without text", list(dict.fromkeys(problems)))
    return count, joined_schema(schemas)


def texts_of(table: pa.Table, names: Sequence[str]) -> SentenceColumns:
    """The first sentences of a table's rows, and the second ones or None."""
    texts = [plain(table.column(name)).to_pylist() for name in names]
    return texts[0], texts[1] if len(texts) > 1 else None


def predict_lines(config: PredictSettings, predictor: AnyPredictor, stream: BinaryIO) -> None:
    """Answers each row by a line of JSON, in their order: always all rows that have arrived, so that none waits.

    Args:
        config: names the columns to keep.
        predictor: of the run.
        stream: a JSON object on each line. The first object's keys are the columns.

    Raises:
        ConfigError: if a column that is to be kept is not there.
        DataError: naming a line that is not such an object or contains no text. All lines before it are answered.
    """
    accepted = accepted_by_all(predictor, known_tasks(predictor, config.manifest))
    names: list[str] = []
    kept: dict[str, str] = {}
    number, sample = 0, Sample()
    for lines in _arriving(stream):
        rows: list[Row] = []
        try:
            for line, row in parsed_lines(PLACE, enumerate(lines, start=number + 1)):
                if not names:
                    names = text_names(list(row), PLACE, accepted)
                    kept = kept_columns(config.columns, list(row), PLACE, answer_names(predictor))
                _check_inputs(predictor, row, names, line)
                rows.append(row)
        # Rows before a bad line are answered even though the command then fails.
        finally:
            console.print_json_lines(_answers(predictor, rows, names, kept))
        taken = [rows[place] for place in sample.places(len(rows))]
        sample.add(*([row[name] for row in taken] for name in names))
        number += len(lines)
    warned(predictor, sample, PLACE)


def _arriving(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yields the lines of a stream in lists, each of all lines that have arrived."""
    rest = b""
    # `read1` returns what has arrived. `read` would wait for a full buffer, and an interactive caller for ever.
    while arrived := stream.read1(BYTES_AT_ONCE):  # type: ignore[attr-defined]
        *lines, rest = (rest + arrived).split(b"\n")
        # A stream without line breaks would otherwise fill the memory.
        if len(rest) > MAX_ROW_BYTES:
            raise DataError(f"{PLACE}: a line of more than {MAX_ROW_BYTES:,} bytes")
        if lines:
            yield lines
    yield [rest]


def _check_inputs(predictor: AnyPredictor, row: Row, names: Sequence[str], line: int) -> None:
    for name in names:
        value = row.get(name)
        problems = (one.answers.input_problem(value) for one in members(predictor).values())
        problem = next(filter(None, problems), None)
        if problem is not None:
            raise DataError(f"{PLACE}, line {line}: {name!r} is {value!r:.80}, {problem}")
    if not has_text([row[name] for name in names]):
        raise DataError(f"{PLACE}, line {line}: {BLANK}")


def _answers(predictor: AnyPredictor, rows: list[Row], names: Sequence[str], kept: dict[str, str]) -> Iterator[Row]:
    if rows:
        answers = pa.table(predictor.columns(*([row[name] for row in rows] for name in names))).to_pylist()
        for row, answer in zip(rows, answers, strict=True):
            yield {output: row.get(name) for name, output in kept.items()} | answer


class Sample:
    """At most `MOST` inputs, evenly spaced, of a stream whose length nobody knows."""

    def __init__(self) -> None:
        self._inputs: list[tuple[Any, ...]] = []
        self._step, self._count = 1, 0

    def places(self, count: int) -> range:
        """Returns which of the next inputs, so many, belong to it and have to be added."""
        first = -self._count % self._step
        self._count += count
        return range(first, count, self._step)

    def add(self, *texts: Sequence[Any] | None) -> None:
        """Adds inputs: the first sentences, and the second ones or None."""
        self._inputs += zip(*(part for part in texts if part is not None), strict=True)
        # Every second one goes, and from now on every second one comes.
        while len(self._inputs) > MOST:
            self._inputs, self._step = self._inputs[::2], 2 * self._step

    def drift(self, predictor: Predictor) -> list[Drift]:
        """Compares the sample with the inputs of the student. Empty if these are not known, or there are none."""
        profile = predictor.info.profile
        if profile is None or not self._inputs:
            return []
        columns = [list(column) for column in zip(*self._inputs, strict=True)]
        return drifts(profile, profile.counts(predictor.signals(*columns)))


def warned(predictor: AnyPredictor, sample: Sample, place: str) -> list[dict[str, Any]]:
    """Compares a sample with the inputs of each student, and warns of each signal that differs noticeably.

    Returns: What a `Drift` has, with the ``task`` of the student.
    """
    found = [(task, one) for task, student in members(predictor).items() for one in sample.drift(student)]
    for task, one in found:
        if one.is_drifted:
            console.warn(
                f"{place}: the {NAMES[one.signal]} differ from those of the task {task} (population stability index "
                f"{one.psi:.2f}, limit {one.limit:.2f})"
            )
    return [{"task": task} | one.model_dump() for task, one in found]


NAMES = {
    "tokens": "lengths of texts",
    "unknown": "shares of tokens that no training row had",
    "label": "shares of the predicted labels",
    "margin": "margins of predictions",
    "score": "predicted scores",
}
