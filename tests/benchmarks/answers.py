"""Answers in bulk against `Predictor.logits` of the same texts in memory: from Parquet to Parquet, and in SQL."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files import write_text
from pipeline.logit_set.record import TOKENIZER_FILE
from pipeline.text.tokenizer import pad_id
from student.answers.file import predict_file
from student.bench import random_student
from student.config import PredictConfig, TrainConfig
from student.predict import Predictor
from student.sql import register
from tests.benchmarks.tokenization import lines_of_documentation, taught_tokenizer, with_threads

TIMES = 5  # so that what a file costs once, the hash of the weights above all, does not count for more than it does


def alternatives() -> dict[str, Callable[[], object]]:
    """The same lines answered by one thread as an array, as a file, which is a new one each time, and in SQL."""
    temporary = TemporaryDirectory(prefix="distill-bench-")
    folder = Path(temporary.name)
    lines = lines_of_documentation()
    sentences, tokenizer = lines * TIMES, taught_tokenizer(lines)
    text = tokenizer.to_str()
    write_text(folder / TOKENIZER_FILE, text)
    flags, size = TrainConfig(head="linear"), tokenizer.get_vocab_size()
    random_student(flags, size, padding_idx=pad_id(tokenizer), tokenizer_json=text).save(folder)
    pq.write_table(pa.table({"sentence1": sentences}), folder / "lines.parquet")
    predictor, numbers = Predictor(folder), count()

    def to_file() -> None:
        output = folder / f"{next(numbers)}.parquet"
        predict_file(PredictConfig(run=folder, file=folder / "lines.parquet", output=output), predictor)
        output.unlink()

    connection = duckdb.connect(config={"threads": 1})
    register(connection, folder)
    query = f"select count(predict('{folder}', sentence1)) from '{folder / 'lines.parquet'}'"
    ways: dict[str, Callable[[], object]] = {
        "Predictor.logits": lambda: predictor.logits(sentences),
        "predict --file": to_file,
        "predict(run, text) in SQL": lambda: (temporary, connection.execute(query).fetchall()),  # keeps the folder
    }
    return {name: with_threads(1, way) for name, way in ways.items()}
