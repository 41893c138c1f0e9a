"""Results for Python that show themselves as tables: as text, and in a notebook."""

import html
from collections.abc import Sequence
from typing import Any

from pipeline import console
from pipeline.untrusted import visible

MOST_ROWS = 40  # that are shown


class Shown:
    """What can be shown as a table.

    Attributes:
        columns: names of the columns.
        cells: the rows to be shown, a value for each column.
        title: what stands above; may be empty.
    """

    columns: Sequence[str]
    cells: Sequence[Sequence[Any]]
    title: str = ""

    def __repr__(self) -> str:
        text = console.table_text(self.columns, self.cells[:MOST_ROWS], self.title)
        return text + self._left_out()

    def _repr_html_(self) -> str:
        """The table for a notebook; nothing in it is taken for HTML."""
        head = "".join(f"<th>{_escaped(name)}</th>" for name in self.columns)
        rows = ("".join(f"<td>{_escaped(console.show(cell))}</td>" for cell in row) for row in self.cells[:MOST_ROWS])
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        caption = f"<caption>{_escaped(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{self._left_out()}"

    def _left_out(self) -> str:
        return f"… {len(self.cells) - MOST_ROWS:,} more rows" if len(self.cells) > MOST_ROWS else ""


class Result(Shown, dict[str, Any]):
    """What a command gives with ``--json``, as a dict, and what it prints as a table.

    Args:
        values: the dict.
        columns: of the table.
        cells: its rows.
        title: of the table.
    """

    def __init__(
        self, values: dict[str, Any], columns: Sequence[str], cells: Sequence[Sequence[Any]], title: str = ""
    ) -> None:
        super().__init__(values)
        self.columns, self.cells, self.title = columns, cells, title


class Rows(Shown, list[dict[str, Any]]):
    """The rows that a query has answered, as a list of dicts: what ``pandas.DataFrame`` takes.

    Args:
        columns: their names.
        cells: a value for each column of each row.
    """

    def __init__(self, columns: Sequence[str], cells: Sequence[Sequence[Any]]) -> None:
        super().__init__(dict(zip(columns, row, strict=True)) for row in cells)
        self.columns, self.cells = columns, cells


def _escaped(text: str) -> str:
    return html.escape(visible(text))
