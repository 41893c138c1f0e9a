"""What each signal's file says of it: its settings, its columns, and how to tell that they are sound."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from pipeline.sets.record_parts import Part


class Signal(Part):
    """Something a teacher says about rows, or about its vocabulary, and how it is stored, as a set's record says it.

    Attributes:
        title: what a set with it holds.
        task_category: what the hub calls a model that says it.
        is_in_rows: whether it is in the files of the rows; what has its own comes last, and a set may get it later.
    """

    title: ClassVar[str]
    task_category: ClassVar[str]
    is_in_rows: ClassVar[bool] = True

    @abstractmethod
    def __str__(self) -> str:
        """Its settings in a few words."""

    def columns(self) -> list[pa.Field]:
        """Its columns in the files of the rows, after those of the rows."""
        return []

    def card_lines(self) -> str:
        """These columns, as rows of the card's table."""
        return ""

    def card_section(self) -> str:
        """What the card says of it besides."""
        return ""

    def configs(self) -> list[dict[str, Any]]:
        """What `datasets.load_dataset` can read of it besides the rows, as the card's front matter says it."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a page about the set tells of it, by name."""

    def problem(self, rows: pa.Table) -> str | None:
        """What is wrong with what is said about some rows; None if nothing is."""
        return None

    def files(self) -> dict[str, int]:
        """Its files beside the shards, with the most bytes that each may have."""
        return {}

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of those of its files that the record tells."""
        return {}

    def check_files(self, root: Path) -> None:
        """Raises IntegrityError unless these files, in the set's folder, are those that belong to it."""

    def measured(self, root: Path) -> Self:
        """The signal with the hashes of these files, once they are written."""
        return self
