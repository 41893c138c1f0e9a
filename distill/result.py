"""The results of commands: values for programs, tables and messages for people. All printing happens here."""

import csv
import html
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from pipeline import console
from pipeline.console import MOST_ROWS, html_table, left_out
from pipeline.untrusted import visible

Cells = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Table:
    """A table of a result.

    Attributes:
        columns: the headings, empty for pairs of a name and a value.
        cells: the rows.
        title: the line above the table, which may be empty.
        is_data: whether the rows are somebody's data, whose long texts are truncated on a screen.
    """

    columns: Sequence[str]
    cells: Cells
    title: str = ""
    is_data: bool = False

    def print(self) -> None:
        """Prints the table to stdout."""
        if self.is_data:
            console.print_rows(self.columns, self.cells)
        elif self.columns:
            console.print_table(self.columns, self.cells, self.title or None)
        else:
            console.print_pairs(self.title, {str(name): value for name, value in self.cells})

    def as_text(self) -> str:
        """Returns the table without colours, at most `MOST_ROWS` of its rows."""
        return console.table_text(self.columns or ("", ""), self.cells[:MOST_ROWS], self.title) + left_out(self.cells)

    def as_html(self) -> str:
        """Returns the table for a notebook, at most `MOST_ROWS` of its rows."""
        return html_table(self.columns, self.cells[:MOST_ROWS], self.title) + left_out(self.cells)


@dataclass(frozen=True)
class Text:
    """A text of a result: Markdown, YAML or a list of commands."""

    text: str

    def print(self) -> None:
        """Prints the text to stdout."""
        console.print_text(self.text)

    def as_text(self) -> str:
        """Returns the text without control characters."""
        return visible(self.text)

    def as_html(self) -> str:
        """Returns the text for a notebook."""
        return f"<pre>{html.escape(visible(self.text))}</pre>"


@dataclass(frozen=True)
class Csv(Table):
    """A table that is printed as CSV, for programs."""

    def print(self) -> None:
        """Writes the table to stdout."""
        csv.writer(sys.stdout, lineterminator="\n").writerows([self.columns, *self.cells])


class Message(NamedTuple):
    """A remark on a result. The command line prints it to stderr."""

    level: Literal["note", "warning"]
    text: str


class Result:
    """What a command returns. It reads like the dict or list that ``--json`` prints, and shows itself as tables.

    Attributes:
        values: what ``--json`` prints, or None if there is nothing, as in all processes of a launcher but the first.
        parts: tables and texts for people.
        messages: notes and warnings.
        exit_code: the exit code of the command line. 1 if the command found a difference, or did not find what it
            looked for.
    """

    def __init__(self, values: Any = None) -> None:
        self.values = values
        self.parts: list[Table | Text] = []
        self.messages: list[Message] = []
        self.exit_code = 0

    @property
    def warnings(self) -> list[str]:
        """The texts of all warnings."""
        return [message.text for message in self.messages if message.level == "warning"]

    def table(self, columns: Sequence[str], cells: Cells, title: str = "") -> Self:
        """Adds a table."""
        return self.add(Table(columns, cells, title))

    def pairs(self, title: str, pairs: Mapping[str, Any]) -> Self:
        """Adds named values, one a line."""
        return self.add(Table((), list(pairs.items()), title))

    def data(self, columns: Sequence[str], cells: Cells) -> Self:
        """Adds rows of somebody's data, whose long texts are truncated on a screen."""
        return self.add(Table(columns, cells, is_data=True))

    def add(self, *parts: Table | Text) -> Self:
        """Adds tables and texts."""
        self.parts += parts
        return self

    def note(self, text: str) -> Self:
        """Adds a note."""
        self.messages.append(Message("note", text))
        return self

    def warn(self, text: str) -> Self:
        """Adds a warning."""
        self.messages.append(Message("warning", text))
        return self

    def failed(self, is_failed: bool = True) -> Self:
        """Sets the exit code to 1 if the command found a difference, or did not find what it looked for."""
        self.exit_code = int(is_failed)
        return self

    def print(self, as_json: bool = False) -> None:
        """Prints tables or JSON to stdout, and messages to stderr."""
        if as_json and self.values is not None:
            console.print_json(self.values)
        for part in [] if as_json else self.parts:
            part.print()
        for level, text in self.messages:
            (console.warn if level == "warning" else console.note)(text)

    def __getitem__(self, key: Any) -> Any:
        return self.values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        # `if result:` should be true for an empty table, and false only where nothing was computed.
        return self.values is not None

    def __eq__(self, other: object) -> bool:
        return bool(self.values == (other.values if isinstance(other, Result) else other))

    # Results compare by value and can be changed, so they must not be dictionary keys.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        messages = [f"{level}: {visible(text)}" for level, text in self.messages]
        return "\n".join([*(part.as_text().rstrip("\n") for part in self.parts), *messages])

    def _repr_html_(self) -> str:
        """Returns the parts and messages for a notebook, with all markup escaped."""
        messages = [f"<p>{level}: {html.escape(visible(text))}</p>" for level, text in self.messages]
        return "".join([*(part.as_html() for part in self.parts), *messages])
