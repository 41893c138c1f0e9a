"""Sets with the outputs of a tiny teacher's layers."""

from pathlib import Path
from typing import Any

from pipeline.sets.record import SetRecord
from teacher.dumps import dump
from tests.helpers.dumps import dump_config

EVERY = {"states": "0,1", "states_codec": "float32", "cls": "all", "attention": "1", "attention_codec": "float32"}
EVERY |= {"values": "all"}


def write(work: Path, store: Path, task: str = "roles", **changes: Any) -> SetRecord:
    """Dumps a tiny task with outputs of layers."""
    record = dump(dump_config(work, task, store, **changes), "distill teacher-dump")
    assert record is not None
    return record
