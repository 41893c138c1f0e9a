"""``distill.json``."""

from pipeline.logit_set.record import parse_set_record
from tests.fuzz.files import FIXTURES

COVERS = ("pipeline.logit_set.record", "pipeline.logit_set.record_parts", "pipeline.record_file", "pipeline.untrusted")
SEEDS = [(FIXTURES / name / "distill.json").read_bytes() for name in ("variants", "hidden", "joined")]


def read(data: bytes) -> None:
    parse_set_record(data, "distill.json")
