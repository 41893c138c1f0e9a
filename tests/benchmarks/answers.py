"""Answers in bulk against `Predictor.logits` of the same texts in memory: from Parquet to Parquet, and in SQL."""

import atexit
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from student.predict.file import predict_file
from student.predict.predictor import Predictor
from student.run_settings import PredictSettings
from student.settings import TrainSettings
from student.sql_functions import register
from tests.benchmarks.random_student import write_random_student
from tests.benchmarks.tokenization import lines_of_documentation, taught_tokenizer, with_threads

TIMES = 5  # so that what a file costs once, the hash of the weights above all, does not count for more than it does


def write_student_and_lines(folder: Path, **flags: object) -> list[str]:
    """Writes a student with a linear head and ``lines.parquet``, whose lines come back."""
    folder.mkdir(exist_ok=True)
    lines = lines_of_documentation()
    write_random_student(folder, taught_tokenizer(lines), TrainSettings.from_flags(head="linear", **flags))
    pq.write_table(pa.table({"sentence1": lines * TIMES}), folder / "lines.parquet")
    return lines * TIMES


def file_to_file(folder: Path, predictor: Predictor) -> Callable[[], None]:
    """What answers ``lines.parquet`` in a new file each time."""
    numbers = count()

    def to_file() -> None:
        output = folder / f"{next(numbers)}.parquet"
        predict_file(PredictSettings(run=folder, file=folder / "lines.parquet", output=output), predictor)
        output.unlink()

    return to_file


def alternatives() -> dict[str, Callable[[], object]]:
    """The same lines answered by one thread as an array, as a file, and in SQL."""
    folder = Path(mkdtemp(prefix="distill-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sentences, predictor = write_student_and_lines(folder), Predictor(folder)
    connection = duckdb.connect(config={"threads": 1})
    register(connection, folder)
    query = f"select count(predict('{folder}', sentence1)) from '{folder / 'lines.parquet'}'"
    ways: dict[str, Callable[[], object]] = {
        "Predictor.logits": lambda: predictor.logits(sentences),
        "predict --file": file_to_file(folder, predictor),
        "predict(run, text) in SQL": lambda: connection.execute(query).fetchall(),
    }
    return {name: with_threads(1, way) for name, way in ways.items()}
