"""``distill predict --file`` of labelled words: the words, labels and spans of a file's rows, in a file."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipeline import console
from pipeline.config import refuse_flags
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.files import sha256
from pipeline.sources.columns import column_name
from pipeline.sources.row_files import RowFile, joined_schema, open_rows
from pipeline.training.run_record import RUN_RECORD, TEXT_COLUMNS, read_run_record
from student.answers.file import from_row, kept_columns, student_hashes
from student.answers.parts import write_in_parts
from student.config import PredictConfig
from student.words.predict import Sentence, WordPredictor

USUAL = ("sentence1", "tokens", "words", "text")  # what the column may be called beside what the task calls it
SPANS = pa.list_(pa.struct([("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("label", pa.string())]))
ANSWERS = pa.schema([("words", pa.list_(pa.string())), ("labels", pa.list_(pa.string())), ("spans", SPANS)])


def check_flags(config: PredictConfig) -> None:
    """Raises ConfigError for flags that are for answers about whole texts."""
    refuse_flags(config, {"explain", "abstain", "cost", "manifest"}, "is not for labelled words")
    if config.reads_stdin:
        raise ConfigError("--file -: is not for labelled words; give a file")


def predict_file(config: PredictConfig, predictor: WordPredictor) -> dict[str, Any]:
    """Writes the answers to a file's rows, or goes on with it; all rows are looked at before the first is answered.

    Returns:
        ``rows``, ``output`` and whether it was ``written`` now.

    Raises:
        ConfigError: if a column that is to be kept is not there.
        DataError: if a row cannot be read or holds no words, naming it.
        FingerprintMismatchError: if the output is there, made with other settings.
    """
    assert config.file is not None
    assert config.output is not None
    rows, name = _open(config)
    kept = kept_columns(config.columns, rows.names, str(rows.path), set(ANSWERS.names))
    hashes = {"student": student_hashes(config.run), "file": sha256(config.file)}
    columns = list(dict.fromkeys([name, *kept]))
    sentences, schema = _sentences(rows, name, columns)
    num_rows = len(sentences)
    with console.progress(num_rows, f"predict {config.file.name}") as steps:

        def answered(done: int) -> Iterator[pa.Table]:
            steps.advance(done)
            for table in from_row(rows.batches(columns, schema), done):
                answers = [
                    {
                        "words": [word["text"] for word in answer["words"]],
                        "labels": [word["label"] for word in answer["words"]],
                        "spans": answer["spans"],
                    }
                    for answer in predictor(table.column(name).to_pylist())
                ]
                found = pa.Table.from_pylist(answers, ANSWERS)
                beside = {output: table.column(column) for column, output in kept.items()}
                yield pa.table(beside | dict(zip(found.column_names, found.columns, strict=True)))
                steps.advance(table.num_rows)

        settings = hashes | {"texts": [name], "columns": list(kept)}
        written = write_in_parts(config.output, settings, answered)
    return {"rows": num_rows, "output": str(config.output), "written": written}


def read_sentences(config: PredictConfig) -> list[Sentence]:
    """All texts of a file, or lists of words; errors as of `predict_file`."""
    rows, name = _open(config)
    return _sentences(rows, name, [name])[0]


def _open(config: PredictConfig) -> tuple[RowFile, str]:
    assert config.file is not None
    rows, problems = open_rows(config.file), list[str]()
    own = read_run_record(config.run / RUN_RECORD).get(TEXT_COLUMNS, [[]])[0]
    name = column_name(rows.names, str(config.file), tuple(dict.fromkeys((*own, *USUAL))), problems)
    raise_all(DataError, "no words to label", problems)
    assert name is not None, "or it would be among the problems"
    return rows, name


def _sentences(rows: RowFile, name: str, columns: Sequence[str]) -> tuple[list[Sentence], pa.Schema]:
    """The column of words of all rows, and the types of columns over all of them."""
    sentences: list[Sentence] = []
    schemas: dict[pa.Schema, None] = {}
    for table in rows.batches(columns):
        sentences += table.column(name).to_pylist()
        schemas[table.schema] = None
    problems = [
        f"{rows.path}: row {number} of {name!r} is {sentence!r}, neither a text nor a list of words"
        for number, sentence in enumerate(sentences, 1)
        if not (isinstance(sentence, str) or (isinstance(sentence, list) and all(isinstance(w, str) for w in sentence)))
    ]
    raise_all(DataError, "rows without words", problems[:3])
    return sentences, joined_schema(schemas)
