"""Checks the rows of a set of words, in small batches, as they may come from anywhere."""

import hashlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.words import words_hashes
from pipeline.sources.source import hash_rows

ROWS_AT_ONCE = 4096
MAX_TEXT_BYTES = 2**28  # of the words read at once


class WordsCheck:
    """Checks the sentences of a set, shard by shard."""

    def __init__(self, record: SetRecord) -> None:
        self._record = record
        self._digests: defaultdict[str, hashlib._Hash] = defaultdict(hashlib.sha256)

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Says what is wrong inside a shard; stops at the first batch that is wrong."""
        problem, seen = words_bomb(path), shard.start
        if problem:
            return problem
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                rows = pa.Table.from_batches([batch])
                expected = np.arange(seen, seen + rows.num_rows)
                if not np.array_equal(rows.column("source_row").to_numpy(), expected):
                    return f"its rows are not the source rows {shard.start:,} to {shard.stop:,}, each once and in order"
                problem = rows_problem(self._record, rows)
                if problem:
                    return problem
                hash_rows(self._digests[shard.split], _as_source_rows(rows))
                seen += rows.num_rows
        if seen != shard.stop:
            return f"it ends at source row {seen:,}, and not at {shard.stop:,}"
        return None

    def split_problems(self) -> list[str]:
        """Says which splits are not those that the record describes."""
        return [
            f"split {split!r}: its words and gold are not those whose hash distill.json gives"
            for split, described in self._record.splits.items()
            if self._digests[split].hexdigest() != described.rows_sha256
        ]


def words_bomb(path: Path) -> str | None:
    """Says if a file holds one word so often, or so long, that its words fill the memory: a dictionary hides that."""
    with pq.ParquetFile(path, read_dictionary=["words.list.element"]) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=["words.list.element"]):
            words = batch.column(0).flatten()
            if not pa.types.is_dictionary(words.type):
                continue
            num_bytes = pc.sum(pc.binary_length(words.dictionary).take(words.indices)).as_py() or 0
            if num_bytes > MAX_TEXT_BYTES:
                return f"the words of {batch.num_rows:,} rows have more than {MAX_TEXT_BYTES:,} bytes"
    return None


def rows_problem(record: SetRecord, rows: pa.Table) -> str | None:
    """Says what is wrong inside some rows, apart from their keys; nothing can be trained from them then."""
    columns = {name: rows.column(name).combine_chunks() for name in ("words", "ids", "word_ids", "label")}
    for name, column in columns.items():
        if (column.null_count and name != "label") or column.flatten().null_count:
            return f"{name} is null somewhere"
    ids, word_ids = columns["ids"], columns["word_ids"]
    words_N = pc.list_value_length(columns["words"])
    if (pc.max(pc.list_value_length(ids)).as_py() or 0) > record.max_seq_length:
        return f"a sentence has more than {record.max_seq_length} tokens"
    if (pc.max(ids.flatten()).as_py() or 0) >= record.tokenizer.vocabulary_size:
        return f"an id is beyond the tokenizer's vocabulary of {record.tokenizer.vocabulary_size:,}"
    if not pc.list_value_length(word_ids).equals(pc.list_value_length(ids)):
        return "a sentence has not as many word_ids as ids"
    return (
        _word_ids_problem(word_ids, words_N) or _label_problem(record, columns["label"], words_N) or _rest(record, rows)
    )


def _word_ids_problem(word_ids: pa.Array, words_N: pa.Array) -> str | None:
    number_T, row_T = word_ids.flatten().to_numpy(), pc.list_parent_indices(word_ids).to_numpy()
    if ((number_T < 0) | (number_T >= words_N.to_numpy()[row_T])).any():
        return "a token is of a word that its sentence has not"
    if ((np.diff(number_T) < 0) & (np.diff(row_T) == 0)).any():
        return "the words of a sentence's tokens do not ascend"
    return None


def _label_problem(record: SetRecord, label: pa.Array, words_N: pa.Array) -> str | None:
    if pc.any(pc.not_equal(pc.list_value_length(label), words_N)).as_py():
        return "a sentence has not one label for each word"
    ends = pc.min_max(label.flatten()).as_py()
    num_labels = record.target.num_logits
    if ends["max"] is not None and not 0 <= ends["min"] <= ends["max"] < num_labels:
        return f"has labels from {ends['min']} to {ends['max']}, but the task has {num_labels} labels"
    return None


def _rest(record: SetRecord, rows: pa.Table) -> str | None:
    for signal in record.signals.stored:
        problem = signal.problem(rows)
        if problem:
            return problem
    expected = words_hashes(record, rows.column("words").to_pylist())
    wrong = [a != b for a, b in zip(expected, rows.column("text_hash").to_pylist(), strict=True)]
    if any(wrong):
        return f"text_hash of source row {rows.column('source_row')[wrong.index(True)]} does not belong to its words"
    return None


def _as_source_rows(rows: pa.Table) -> pa.RecordBatch:
    """The columns that `rows_sha256` hashes of source rows; sentence2 and score are null."""
    nothing = pa.nulls(rows.num_rows)
    columns = [rows.column("words").combine_chunks(), nothing, rows.column("label").combine_chunks(), nothing]
    return pa.RecordBatch.from_arrays(columns, names=["sentence1", "sentence2", "label", "score"])
