"""What differs by kind of row in stage two, and the kinds that students of tasks learn from."""

from pathlib import Path
from typing import Any

from pipeline.sets.record import read_set_record
from pipeline.sets.record_parts import KindName
from student.kinds.examples import ExampleKind
from student.kinds.kind import TaskKind
from student.kinds.token_labels import TokenLabelKind

KINDS: dict[KindName, TaskKind[Any, Any, Any]] = {"examples": ExampleKind(), "token_labels": TokenLabelKind()}


def kind_of_set(path: Path) -> TaskKind[Any, Any, Any]:
    """The kind of row of a set; of one that no student of a task can learn from examples, which refuse it."""
    return KINDS.get(read_set_record(path).kind, KINDS["examples"])
