"""``distill.json``."""

from pipeline.sets.record import parse_set_record
from tests.fuzz.files import FIXTURES

COVERS = ("pipeline.sets.record", "pipeline.sets.record_parts", "pipeline.record_file", "pipeline.untrusted")
SEEDS = [(FIXTURES / name / "distill.json").read_bytes() for name in ("variants", "hidden", "joined")]


def read(data: bytes) -> None:
    parse_set_record(data, "distill.json")
