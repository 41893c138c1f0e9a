"""Answers to texts that are in several shards, kept in the store, so that of many jobs not each asks for them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.files import make_folder, remove_file, write_atomically
from pipeline.sets.record import SetRecord
from pipeline.sets.row_kinds import TEXT_HASH_BYTES
from pipeline.sets.shard_file import parquet_writer, read_footer
from teacher.dump.answers import Known

FOLDER = "repeated"


def kept_answers(store: Path, record: SetRecord) -> Known | None:
    """What another job of the same set has asked for; None if none has, or the file is not whole."""
    path = _path(store, record)
    try:
        if read_footer(path) != {"fingerprint": record.fingerprint}:
            return None
        table = pq.read_table(path, schema=_schema(record), partitioning=None, page_checksum_verification=True)
    except (IntegrityError, OSError, pa.ArrowException):
        return None
    flat = table.column("logits").combine_chunks().flatten().to_numpy()
    if not np.isfinite(flat).all():
        return None
    logits_KC = flat.reshape(table.num_rows, record.target.num_logits)
    return Known.of(table.column("text_hash").to_pylist(), logits_KC)


def keep_answers(store: Path, record: SetRecord, known: Known) -> None:
    """Keeps the teacher's answers for the jobs that come later."""
    schema, path = _schema(record), _path(store, record)
    logits = pa.FixedSizeListArray.from_arrays(pa.array(known.logits_KC.ravel()), known.logits_KC.shape[1])
    hashes = [bytes(text) for text in known.hash_K.astype(f"V{TEXT_HASH_BYTES}")]
    table = pa.table({"text_hash": pa.array(hashes, schema.field(0).type), "logits": logits}, schema=schema)

    def write(temporary: Path) -> None:
        with parquet_writer(temporary, schema, {"fingerprint": record.fingerprint}) as writer:
            writer.write_table(table)

    make_folder(path.parent)
    write_atomically(path, write)


def forget_answers(store: Path, record: SetRecord | None) -> None:
    """Removes them if the set is verified, as no job needs them any more."""
    if record is not None and record.state == "verified":
        remove_file(_path(store, record))


def _path(store: Path, record: SetRecord) -> Path:
    return store / FOLDER / f"{record.fingerprint[:16]}.parquet"


def _schema(record: SetRecord) -> pa.Schema:
    logits = pa.list_(pa.float32(), record.target.num_logits)
    return pa.schema([pa.field("text_hash", pa.binary(TEXT_HASH_BYTES)), pa.field("logits", logits)])
