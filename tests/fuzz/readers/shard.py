"""A set's Parquet file whose size and hash are those of the record, as an enemy's would be.

The sets are of two source rows in one file: all else that is verified would be the same each time. Half of the files
are neither compressed nor encoded, as what is changed in those mostly still has values.
"""

import hashlib
import io
import json
import shutil
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.parquet import FOOTER_KEY
from pipeline.sets.files import footer_of
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.verify import verify_shards
from pipeline.sources.source import rows_sha256
from tests.fuzz.files import FIXTURES, FOLDER, of_a_kind, seeds

COVERS = ("pipeline.sets.verify", "pipeline.sets.files", "pipeline.sets.kinds.examples")
KINDS = ("variants", "topk", "hidden")
NUM_ROWS = 2
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def small(name: str) -> tuple[SetRecord, pa.Table]:
    """The record of a set as it would be of its last file's first source rows, and what that file holds."""
    record = read_set_record(FIXTURES / name)
    shard = record.shards[-1]
    table = pq.read_table(FIXTURES / name / shard.path, partitioning=None)
    table = table.filter(pc.less(table["source_row"], NUM_ROWS))
    changes: dict[str, Any] = {"rows": NUM_ROWS}
    if record.augmentation:
        originals = table.filter(pc.equal(table["variant"], 0))
        changes["rows_sha256"] = rows_sha256(originals)
        variants = table.num_rows - originals.num_rows
        record = record.model_copy(update={"augmentation": record.augmentation.model_copy(update={"rows": variants})})
    splits = {shard.split: record.splits[shard.split].model_copy(update=changes)}
    shard = shard.model_copy(update={"stop": NUM_ROWS, "rows": table.num_rows})
    record = record.model_copy(update={"splits": splits, "shards": (shard,)})
    return record, table


def parquet(record: SetRecord, table: pa.Table, **encodings: Any) -> bytes:
    """The bytes of a file of the record's only shard."""
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, table.schema, **encodings) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer_of(record, record.shards[0]))})
    return stream.getvalue()


SMALL = {name: small(name) for name in KINDS}
for name in KINDS:
    shutil.copytree(FIXTURES / name, FOLDER / name, ignore=lambda _, names: [n for n in names if "parquet" in n])
SEEDS = seeds(
    KINDS,
    {name: [parquet(*SMALL[name], **PLAIN), parquet(*SMALL[name], compression="zstd")] for name in KINDS},
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    record = SMALL[kind][0]
    digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    shard = record.shards[0].model_copy(update=digest)
    (FOLDER / kind / shard.path).write_bytes(content)
    verify_shards(FOLDER / kind, record.model_copy(update={"shards": (shard,)}))
