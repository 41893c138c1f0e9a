"""How many rows of a set are longer than was read of them."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.sets.reader import load_set_tokenizer
from pipeline.sets.record import SetRecord
from pipeline.sources import sentences
from pipeline.text.reader import TextReader
from pipeline.text.windows import are_truncated
from pipeline.text.word_pieces import read_pieces


def note_of_cut_rows(root: Path, record: SetRecord) -> str | None:
    """Tells how many rows of a task in a complete set were cut; None if none was, or there are no texts to tell by."""
    if record.kind not in COUNTS or not record.has_text:
        return None
    reader = TextReader.of(load_set_tokenizer(root, record.tokenizer))
    size = record.windows.size if record.windows else record.max_seq_length
    room = size - reader.tokenizer.num_special_tokens_to_add(record.is_pair)
    cut = sum(COUNTS[record.kind](root / shard.path, reader, room, bool(record.windows)) for shard in record.shards)
    if not cut:
        return None
    share = cut / record.num_rows
    of_all = f"{cut:,} of {record.num_rows:,} rows ({share:.1%})"
    if record.windows:
        return f"of {of_all} both sentences are longer than half a window; of the shorter one that much was read"
    return f"{of_all} are longer than {size} tokens, and were cut"


def _cut_rows(path: Path, reader: TextReader, room: int, by_windows: bool) -> int:
    """Rows of a file that are not read whole: of those that fill the room, which are read once more."""
    ids = pq.read_table(path, columns=["ids1", "ids2"], partitioning=None)
    is_full = np.add(*(pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in ids.columns)) >= room
    if not is_full.any():
        return 0
    texts = pq.read_table(path, columns=["sentence1", "sentence2"], partitioning=None)
    parts = reader.read(*sentences(texts.filter(is_full)), None)
    return int(are_truncated([part.lengths for part in parts], room, by_windows).sum())


def _cut_sentences(path: Path, reader: TextReader, room: int, by_windows: bool) -> int:
    """The same of a file of labelled words, which no windows read."""
    assert not by_windows, "the record refuses it"
    rows = pq.read_table(path, columns=["ids", "words"], partitioning=None)
    full = rows.filter(pc.greater_equal(pc.list_value_length(rows.column("ids")), room))
    return int((read_pieces(reader, full.column("words").to_pylist()).ids.lengths > room).sum())


COUNTS = {"examples": _cut_rows, "token_labels": _cut_sentences}
