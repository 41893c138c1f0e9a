"""How many rows of a set are longer than was read of them."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.logit_set.reader import load_set_tokenizer
from pipeline.logit_set.record import SetRecord
from pipeline.sources import sentences
from pipeline.text.pieces import read_pieces
from pipeline.text.reader import TextReader


def note_of_cut_rows(root: Path, record: SetRecord) -> str | None:
    """Tells how many rows of a task in a complete set were cut; None if none was, or there are no texts to tell by."""
    if record.rows not in COUNTS or not record.has_text:
        return None
    reader = TextReader.of(load_set_tokenizer(root, record.tokenizer))
    room = record.max_seq_length - reader.tokenizer.num_special_tokens_to_add(record.is_pair)
    cut = sum(COUNTS[record.rows](root / shard.path, reader, room) for shard in record.shards)
    if not cut:
        return None
    share = cut / record.num_rows
    of_all = f"{cut:,} of {record.num_rows:,} rows ({share:.1%})"
    return f"{of_all} are longer than {record.max_seq_length} tokens, and were cut"


def _cut_rows(path: Path, reader: TextReader, room: int) -> int:
    """Rows of a file that have more tokens than there is room for: of those that fill it, which are read once more."""
    ids = pq.read_table(path, columns=["ids1", "ids2"], partitioning=None)
    is_full = np.add(*(pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in ids.columns)) >= room
    if not is_full.any():
        return 0
    texts = pq.read_table(path, columns=["sentence1", "sentence2"], partitioning=None)
    parts = reader.read(*sentences(texts.filter(is_full)), None)
    return int((np.sum([part.lengths for part in parts], axis=0) > room).sum())


def _cut_sentences(path: Path, reader: TextReader, room: int) -> int:
    """The same of a file of labelled words."""
    rows = pq.read_table(path, columns=["ids", "words"], partitioning=None)
    full = rows.filter(pc.greater_equal(pc.list_value_length(rows.column("ids")), room))
    return int((read_pieces(reader, full.column("words").to_pylist()).ids.lengths > room).sum())


COUNTS = {"examples": _cut_rows, "words": _cut_sentences}
