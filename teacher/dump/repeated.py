"""Answers to texts that are in several shards, shared by the jobs of a set: one job runs the teacher on them.

They lie in the store, in a file whose name is made of the set's fingerprint.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files import make_folder, remove_file
from pipeline.sets.record import SetRecord
from pipeline.sets.row_kind import TEXT_HASH_BYTES
from pipeline.work import FilePart, Workspace
from teacher.dump.answers import Known

FOLDER = "repeated"


def read_shared_answers(store: Path, record: SetRecord) -> Known | None:
    """Reads the answers that another job of the same set has written; None if there are none, or they are damaged."""
    work, part = _workspace(store, record)
    if not work.has(part):
        return None
    try:
        path = work.root / part.path
        table = pq.read_table(path, schema=_schema(record), partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    flat = table.column("logits").combine_chunks().flatten().to_numpy()
    if not np.isfinite(flat).all():
        return None
    logits_KC = flat.reshape(table.num_rows, record.target.num_logits)
    return Known.of(table.column("text_hash").to_pylist(), logits_KC)


def write_shared_answers(store: Path, record: SetRecord, known: Known) -> None:
    """Writes the teacher's answers for the jobs that come later."""
    work, part = _workspace(store, record)
    schema = _schema(record)
    logits = pa.FixedSizeListArray.from_arrays(pa.array(known.logits_KC.ravel()), known.logits_KC.shape[1])
    hashes = [bytes(text) for text in known.hash_K.astype(f"V{TEXT_HASH_BYTES}")]
    make_folder(work.root)
    work.write_table(
        part, pa.table({"text_hash": pa.array(hashes, schema.field(0).type), "logits": logits}, schema=schema)
    )


def remove_shared_answers(store: Path, record: SetRecord | None) -> None:
    """Removes them if the set is verified, as no job needs them any more."""
    if record is not None and record.state == "verified":
        work, part = _workspace(store, record)
        remove_file(work.root / part.path)


def _workspace(store: Path, record: SetRecord) -> tuple[Workspace, FilePart]:
    # several jobs write here at once: no record, and temporary files of others stay where they are
    work = Workspace(store / FOLDER, record.settings)
    return work, FilePart(f"{work.fingerprint[:16]}.parquet")


def _schema(record: SetRecord) -> pa.Schema:
    logits = pa.list_(pa.float32(), record.target.num_logits)
    return pa.schema([pa.field("text_hash", pa.binary(TEXT_HASH_BYTES)), pa.field("logits", logits)])
