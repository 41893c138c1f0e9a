"""``distill predict --file -``: rows of JSON as they arrive on standard input, answered on standard output."""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline import console
from pipeline.errors import DataError
from pipeline.sources.row_files import MAX_ROW_BYTES, parsed_lines
from student.answers.columns import answer_columns
from student.answers.file import accepted_names, kept_columns, known_task, text_names
from student.config import PredictConfig
from student.predict import Predictor

PLACE = "standard input"
BYTES_AT_ONCE = 2**20

Row = dict[str, Any]


def predict_lines(config: PredictConfig, predictor: Predictor, stream: BinaryIO) -> None:
    """Answers each row by a line of JSON, in their order: always all rows that have arrived, so that none waits.

    Args:
        config: names the columns to keep.
        predictor: of the run.
        stream: gives an object with columns on each line; the first tells which columns there are.

    Raises:
        ConfigError: if a column that is to be kept is not there.
        DataError: if a line is no such object or holds no text, naming it; all before it are answered.
    """
    accepted = accepted_names(config.run, known_task(predictor, config.manifest), predictor)
    names: list[str] = []
    kept: dict[str, str] = {}
    number = 0
    for lines in _arriving(stream):
        rows: list[Row] = []
        try:
            for line, row in parsed_lines(PLACE, enumerate(lines, start=number + 1)):
                if not names:
                    names = text_names(list(row), PLACE, accepted)
                    kept = kept_columns(config.columns, list(row), PLACE)
                _check_texts(row, names, line)
                rows.append(row)
        finally:
            console.print_json_lines(_answers(predictor, rows, names, kept))
        number += len(lines)


def _arriving(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, at once those that are there."""
    rest = b""
    while arrived := stream.read1(BYTES_AT_ONCE):  # type: ignore[attr-defined]
        *lines, rest = (rest + arrived).split(b"\n")
        if len(rest) > MAX_ROW_BYTES:
            raise DataError(f"{PLACE}: a line of more than {MAX_ROW_BYTES:,} bytes")
        if lines:
            yield lines
    yield [rest]


def _check_texts(row: Row, names: Sequence[str], line: int) -> None:
    for name in names:
        text = row.get(name)
        if not isinstance(text, str):
            raise DataError(f"{PLACE}, line {line}: {name!r} is {text!r}, not text")


def _answers(predictor: Predictor, rows: list[Row], names: Sequence[str], kept: dict[str, str]) -> Iterator[Row]:
    if rows:
        logits_NC = predictor.logits(*([row[name] for row in rows] for name in names))
        target = predictor.student.config.target
        columns = answer_columns(target, logits_NC, predictor.threshold, predictor.bias_C)
        answers = pa.table(columns).to_pylist()
        for row, answer in zip(rows, answers, strict=True):
            yield {output: row.get(name) for name, output in kept.items()} | answer
