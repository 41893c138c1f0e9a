"""Query results for Python that display as a table, in text and in a notebook."""

import html
from collections.abc import Sequence
from typing import Any

from pipeline import console
from pipeline.untrusted import visible

MOST_ROWS = 40  # rows that are shown


class Rows(list[dict[str, Any]]):
    """The rows of a query's result, as a list of dicts, which ``pandas.DataFrame`` accepts.

    Args:
        columns: their names.
        cells: a value for each column of each row.
    """

    def __init__(self, columns: Sequence[str], cells: Sequence[Sequence[Any]]) -> None:
        super().__init__(dict(zip(columns, row, strict=True)) for row in cells)
        self.columns, self.cells = columns, cells

    def __repr__(self) -> str:
        return console.table_text(self.columns, self.cells[:MOST_ROWS]) + left_out(self.cells)

    def _repr_html_(self) -> str:
        return html_table(self.columns, self.cells[:MOST_ROWS]) + left_out(self.cells)


def html_table(columns: Sequence[str], cells: Sequence[Sequence[Any]], title: str = "") -> str:
    """Returns a table for a notebook. All text in it is escaped.

    Args:
        columns: the headings, or none.
        cells: a value for each column of each row.
        title: the line above the table, which may be empty.
    """
    head = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
    rows = ("".join(f"<td>{_escaped(console.show(cell))}</td>" for cell in row) for row in cells)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    caption = f"<caption>{_escaped(title)}</caption>" if title else ""
    heads = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table>{caption}{heads}<tbody>{body}</tbody></table>"


def left_out(cells: Sequence[Sequence[Any]]) -> str:
    """Returns how many rows are not shown, if any."""
    return f"… {len(cells) - MOST_ROWS:,} more rows" if len(cells) > MOST_ROWS else ""


def _escaped(text: str) -> str:
    return html.escape(visible(text))
