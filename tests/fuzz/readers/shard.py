"""A set's Parquet file whose size and hash are those of the record, as an enemy's would be."""

import hashlib
import shutil

from pipeline.logit_set.record import read_set_record
from pipeline.logit_set.verify import verify_shards
from tests.fuzz.files import FIXTURES, FOLDER, of_a_kind, seeds

COVERS = ("pipeline.logit_set.verify", "pipeline.logit_set.shard_file", "pipeline.logit_set.verify_examples")
KINDS = ("variants", "topk", "hidden")
RECORDS = {name: read_set_record(FIXTURES / name) for name in KINDS}
for name in KINDS:
    shutil.copytree(FIXTURES / name, FOLDER / name)
SEEDS = seeds(KINDS, {name: [(FIXTURES / name / RECORDS[name].shards[-1].path).read_bytes()] for name in KINDS})


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    record = RECORDS[kind]
    digest = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    shards = (*record.shards[:-1], record.shards[-1].model_copy(update=digest))
    (FOLDER / kind / shards[-1].path).write_bytes(content)
    verify_shards(FOLDER / kind, record.model_copy(update={"shards": shards}))
