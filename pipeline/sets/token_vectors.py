"""The file of the signal ``token_vectors``: written after a set is verified, and checked before every use.

Its footer contains the set's fingerprint, like those of shards, because the file counts the tokens of the training
rows. A set that is made from another one copies the vectors and counts again.

Shapes: V vocabulary, W width.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import make_folder, remove_temporaries, sha256, write_atomically
from pipeline.parquet import Footer, parquet_writer, read_footer, read_metadata
from pipeline.sets.card import write_card_and_record
from pipeline.sets.files import bomb_problem, bytes_problem, found_problem, require_sound
from pipeline.sets.kinds import kind_of
from pipeline.sets.record import SetRecord, changed
from pipeline.sets.record_parts import FileRecord
from pipeline.sets.signals import TokenVectors
from pipeline.sets.signals.side_files import MAX_WIDTH, VOCABULARY_FILE, TokenVectorSource, columns_of
from pipeline.tasks.task import TRAIN
from pipeline.text.tokenizer import load_tokenizer

Vectors = Floats | npt.NDArray[np.float16]
ROWS_AT_ONCE = 4096
TEACHER = TokenVectorSource()


@dataclass(frozen=True)
class VocabularyVectors:
    """The stored numbers of each vocabulary entry.

    Attributes:
        vector_VW: float16, by id.
        count_V: int64, its count in the training rows, or 0 where the counts are not stored.
        speaker: the layer or the encoder of the vectors.
    """

    vector_VW: npt.NDArray[np.float16]
    count_V: Ints
    speaker: TokenVectorSource = TEACHER

    @property
    def sha256(self) -> str:
        """Hash of the numbers, independent of the library that wrote the file."""
        return hashlib.sha256(self.count_V.astype("<i8").tobytes() + self.vector_VW.astype("<f2").tobytes()).hexdigest()


def with_token_vectors(
    root: Path, record: SetRecord, vectors: Callable[[], Vectors], speaker: TokenVectorSource = TEACHER
) -> SetRecord:
    """Adds token vectors to a verified set without vectors, with a damaged file, or with those of another encoder.

    Args:
        root: the set's folder.
        record: its record.
        vectors: returns the vectors [V, W]. It is only called if no complete file exists, such as from a killed
            command.
        speaker: the layer or the encoder of the vectors.

    Returns:
        The record on disk, with the signal.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    stored = record.signals.token_vectors
    is_wanted = stored is not None and stored.speaker == speaker
    if is_wanted and token_vectors_problem(root, record) is None:
        return record
    path = root / VOCABULARY_FILE
    # A killed command may have written the file but not the record. A sound file saves a pass over the vocabulary.
    recorded = None if is_wanted else _recorded(root, record, speaker)
    if recorded is None:
        table = _table(root, record, vectors())
        make_folder(path.parent)
        write_atomically(path, lambda temporary: _write(temporary, table, _footer(record, speaker)))
        recorded = _recorded(root, record, speaker)
        assert recorded is not None, "the file that was just written is sound"
    for folder in (root, path.parent):
        remove_temporaries(folder)
    write_card_and_record(root, recorded)
    return recorded


def take_over_token_vectors(source: Path, source_record: SetRecord, root: Path, record: SetRecord) -> SetRecord:
    """Copies the token vectors of a set, if it has any, to a verified set of the same teacher.

    Returns the latter's record.

    Raises:
        IntegrityError: if they do not match the record of the first set.
    """
    stored = read_token_vectors(source, source_record)
    return record if stored is None else with_token_vectors(root, record, lambda: stored.vector_VW, stored.speaker)


def read_token_vectors(root: Path, record: SetRecord) -> VocabularyVectors | None:
    """Reads a set's token vectors, or returns None without any.

    Raises:
        IntegrityError: if the file is missing or was changed, or has other content than recorded.
    """
    signal = record.signals.token_vectors
    if signal is None:
        return None
    check_token_vectors(root, record)
    table = pq.read_table(root / VOCABULARY_FILE, columns=["count", "vector"], partitioning=None)
    count_V = table.column("count").fill_null(0).to_numpy()
    return VocabularyVectors(_halves(table.column("vector"), signal.width), count_V, signal.speaker)


def check_token_vectors(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError if token vectors differ from the record, are not finite, or have other tokens."""
    if record.signals.token_vectors is not None:
        require_sound(root / VOCABULARY_FILE, token_vectors_problem(root, record))


def token_vectors_problem(root: Path, record: SetRecord) -> str | None:
    """Returns the problem of the token vectors of a set that has them, or None."""
    signal, path = record.signals.token_vectors, root / VOCABULARY_FILE
    assert signal is not None, "only called for a set that has them"
    return bytes_problem(path, signal.file) or found_problem(path, partial(_content_problem, path, record, signal))


def _content_problem(path: Path, record: SetRecord, signal: TokenVectors) -> str | None:
    metadata = read_metadata(path)
    if read_footer(path) != _footer(record, signal.speaker):
        return "its footer belongs to another set"
    expected = columns_of(signal.width)
    # The cheap count comes first: comparing a hostile schema of 100,000s of columns takes hours.
    if metadata.num_columns != len(expected) or pq.read_schema(path).remove_metadata() != expected:
        return f"its columns are not those of {signal}"
    if metadata.num_rows != signal.file.rows:
        return f"{metadata.num_rows:,} rows, but distill.json has {signal.file.rows:,}"
    # Before the first row is read, because a decompression bomb would fill the memory.
    problem = bomb_problem(metadata, path)
    if problem:
        return problem
    tokens = _tokens(path.parents[1], record)
    start = num_counts = 0
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            rows = pa.Table.from_batches([batch])
            problem = _rows_problem(rows, tokens[start : start + len(rows)], start, signal.width)
            if problem:
                return problem
            start += len(rows)
            num_counts += len(rows) - rows.column("count").null_count
    # The footer's count may be false, so the rows that were actually read are counted as well.
    if start != signal.file.rows:
        return f"{start:,} rows, but distill.json has {signal.file.rows:,}"
    return None if num_counts in (0, start) else "some but not all counts are null"


def _rows_problem(rows: pa.Table, tokens: list[str | None], start: int, width: int) -> str | None:
    if not np.array_equal(rows.column("id").to_numpy(), np.arange(start, start + len(rows))):
        return f"its ids are not 0, 1, … near {start:,}"
    if not rows.column("token").equals(pa.chunked_array([pa.array(tokens, pa.string())])):
        return f"its tokens are not those of {TOKENIZER_FILE} near id {start:,}"
    if (pc.min(rows.column("count")).as_py() or 0) < 0:
        return f"a count near id {start:,} is below 0"
    vectors = rows.column("vector")
    if vectors.null_count or vectors.combine_chunks().flatten().null_count:
        return f"a number near id {start:,} is null"
    finite_V = np.isfinite(_halves(vectors, width)).all(axis=1)
    return None if finite_V.all() else f"the vector of id {start + int(np.flatnonzero(~finite_V)[0])} is NaN or Inf"


def _recorded(root: Path, record: SetRecord, speaker: TokenVectorSource) -> SetRecord | None:
    """Returns the record with the existing file, or None if it is incomplete or belongs to another set or encoder."""
    path = root / VOCABULARY_FILE
    try:
        num_rows, kind = read_metadata(path).num_rows, pq.read_schema(path).field("vector").type
    except (IntegrityError, KeyError, OSError, pa.ArrowException):
        return None
    if not pa.types.is_fixed_size_list(kind) or not 1 <= kind.list_size <= MAX_WIDTH:
        return None
    if num_rows != record.tokenizer.vocabulary_size:
        return None
    file = FileRecord(rows=num_rows, bytes=path.stat().st_size, sha256=sha256(path))
    signal = TokenVectors(width=kind.list_size, layer=speaker.layer, encoder=speaker.encoder, file=file)
    recorded = changed(record, signals=record.signals.model_copy(update={"token_vectors": signal}))
    return recorded if token_vectors_problem(root, recorded) is None else None


def _table(root: Path, record: SetRecord, vector_VW: Vectors) -> pa.Table:
    bits_VW = np.ascontiguousarray(vector_VW, dtype=np.float16).view(np.uint16)
    size = len(bits_VW)
    columns = {
        "id": pa.array(np.arange(size)),
        "token": pa.array(_tokens(root, record), pa.string()),
        "count": pa.array(_counts(root, record)) if record.has_text else pa.nulls(size, pa.int64()),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(bits_VW.ravel()), bits_VW.shape[1]),
    }
    return pa.table(columns, schema=columns_of(bits_VW.shape[1]))


def _write(path: Path, table: pa.Table, footer: Footer) -> None:
    split = ["vector.list.element"]
    with parquet_writer(path, table.schema, footer, use_dictionary=False, use_byte_stream_split=split) as writer:
        writer.write_table(table)


def _footer(record: SetRecord, speaker: TokenVectorSource) -> Footer:
    names = {"signal": "token_vectors", "layer": str(speaker.layer)}
    if speaker.encoder is not None:
        names["encoder"] = speaker.encoder.sha256
    return {"format_version": record.format_version, "fingerprint": record.fingerprint, **names}


def _tokens(root: Path, record: SetRecord) -> list[str | None]:
    """Returns every entry of a set's vocabulary by its id, or None for an id without a token."""
    tokenizer = load_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256)
    tokens: list[str | None] = [None] * record.tokenizer.vocabulary_size
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number >= len(tokens):
            raise IntegrityError(f"{root / TOKENIZER_FILE}: token {number} is beyond the vocabulary of {len(tokens):,}")
        tokens[number] = token
    return tokens


def _counts(root: Path, record: SetRecord) -> Ints:
    """Returns the count of each token in the original training rows of a set [V], int64."""
    count_V = np.zeros(record.tokenizer.vocabulary_size, dtype=np.int64)
    for shard in record.shards_of(TRAIN):
        for column in kind_of(record).training_ids(root / shard.path):
            ids = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
            # One file at a time, so that the training split need not fit into memory.
            count_V += np.bincount(ids.astype(np.int64), minlength=len(count_V))
    return count_V


def _halves(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float16]:
    """Returns a column of float16 bits as an array [rows, W]."""
    bits: npt.NDArray[np.uint16] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return bits.view(np.float16).reshape(-1, width)
