"""What each signal's file says of it: its settings, its columns, and how to tell that they are sound."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from pipeline.logit_set.record_parts import Part, RowsName


class Signal(Part):
    """Something a teacher says about rows, and how it is stored, as a set's record says it.

    Attributes:
        rows: the kind of rows that it is about.
        title: what a set with it holds.
        task_category: what the hub calls a model that says it.
    """

    rows: ClassVar[RowsName]
    title: ClassVar[str]
    task_category: ClassVar[str]

    @abstractmethod
    def __str__(self) -> str:
        """Its settings in a few words."""

    @abstractmethod
    def columns(self) -> list[pa.Field]:
        """Its columns, after those of the rows."""

    @abstractmethod
    def card_lines(self) -> str:
        """Its columns, as rows of the card's table."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a page about the set tells of it, by name."""

    @abstractmethod
    def problem(self, rows: pa.Table) -> str | None:
        """What is wrong with what is said about some rows; None if nothing is."""

    def files(self) -> dict[str, int]:
        """Its files beside the shards, with the most bytes that each may have."""
        return {}

    def check_files(self, root: Path) -> None:
        """Raises IntegrityError unless these files, in the set's folder, are those that belong to it."""

    def measured(self, root: Path) -> Self:
        """The signal with the hashes of these files, once they are written."""
        return self
