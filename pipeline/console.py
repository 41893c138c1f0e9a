"""Terminal output: progress and notes on stderr, results on stdout. Also results that display as tables in Python.

Names and texts may come from an untrusted set, so control characters are escaped before they are printed (`safe`).
"""

import html
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pipeline import console, log
from pipeline.environment import is_main_process, progress_disabled
from pipeline.untrusted import visible, without_nan

LINE_EVERY_S, LOG_EVERY_S = 30, 10
LONGEST_CELL, SHORTEST_CELL = 60, 20  # characters of a text in a table of rows
# Columns of a pipe or a file, so that nothing is truncated.
WIDEST = 10**6
# json.dumps(ensure_ascii=False) escapes control characters below 0x20, but not these, which terminals also interpret.
NO_ASCII = re.compile(r"[^\x00-\x7f]")
BEYOND_ASCII = re.compile(r"[\x7f-\x9f\ud800-\udfff]")

# Without emoji=False rich would replace ":train:" in mnli:train:7 by a picture of a train.
stdout = Console(emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)
MOST_ROWS = 40  # rows that are shown


def safe(text: str) -> str:
    """Returns text without control characters and without anything that rich would interpret as markup."""
    return escape_markup(visible(text))


def accept_all_characters() -> None:
    """Makes stdout and stderr escape the characters that their encoding lacks, such as é in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # notebooks and tests have others
            stream.reconfigure(errors="backslashreplace")


def note(message: str) -> None:
    """Prints progress information (stderr, main process only)."""
    if is_main_process():
        log.event("note", message=message)
        stderr.print(safe(message), soft_wrap=True)


def warn(message: str) -> None:
    """Prints a warning (stderr, main process only)."""
    if is_main_process():
        log.event("warning", message=message)
        stderr.print(f"[yellow]warning:[/] {safe(message)}", soft_wrap=True)


def error(message: str) -> None:
    """Prints why the command stops (stderr, every process)."""
    log.event("error", message=message)
    stderr.print(f"[red]error:[/] {safe(message)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints a result for programs. JSON escapes ASCII control characters. The others are escaped here."""
    _write_json(json.dumps(without_nan(value), indent=2, ensure_ascii=False, default=str))


def print_json_lines(values: Iterable[Any]) -> None:
    """Prints results for machines, one per line, and flushes them."""
    for value in values:
        _write_json(json.dumps(without_nan(value), ensure_ascii=False, default=str))
    sys.stdout.flush()


def _write_json(text: str) -> None:
    text = BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # `accept_all_characters` would write \xe9, which is not JSON.
        text = NO_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    sys.stdout.write(text + "\n")


def print_text(text: str) -> None:
    """Prints a text unchanged except for control characters."""
    sys.stdout.write(visible(text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Prints a result for people."""
    _print(_table(columns, rows, title))


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> str:
    """Returns the output of `print_table` without colours."""
    screen = Console(file=io.StringIO(), emoji=False, width=_width(), force_terminal=False, force_jupyter=False)
    with screen.capture() as captured:
        screen.print(_table(columns, rows, title))
    return captured.get()


def _width() -> int:
    """Returns the number of columns for results. A pipe or a file has no width, so results are not truncated there."""
    is_screen = stdout.is_terminal or stdout.is_jupyter or "COLUMNS" in os.environ
    return stdout.width if is_screen else WIDEST


def _print(table: Table) -> None:
    is_unlimited = _width() == WIDEST
    if is_unlimited:
        # rich would otherwise assume 80 columns for a pipe and truncate the cells that scripts read.
        table.width = stdout.measure(table, options=stdout.options.update(width=WIDEST)).maximum
    stdout.print(table, crop=not is_unlimited)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None) -> Table:
    table = Table(title=title and safe(title), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(safe(column), justify="right" if _is_numeric(rows, number) else "left")
    for row in rows:
        table.add_row(*(safe(show(cell)) for cell in row))
    return table


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows of data for people, one per line with truncated texts. Narrow screens get one cell per line.

    Output to a pipe or a file is never truncated.
    """
    longest = LONGEST_CELL if _width() < WIDEST else WIDEST
    cells = [[_line(show(cell), longest) for cell in row] for row in rows]
    widths = [max(map(cell_len, [name, *(row[number] for row in cells)])) for number, name in enumerate(columns)]
    if sum(min(width, SHORTEST_CELL) + 3 for width in widths) + 1 > _width():
        table = Table(show_header=False)
        for row in cells:
            for name, cell in zip(columns, row, strict=True):
                table.add_row(safe(name), _truncated(cell))
            table.add_section()
    else:
        table = Table()
        for number, name in enumerate(columns):
            numeric = _is_numeric(rows, number)
            table.add_column(safe(name), justify="right" if numeric else "left", no_wrap=widths[number] < SHORTEST_CELL)
        for row in cells:
            table.add_row(*map(_truncated, row))
    _print(table)


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """Prints named values, one per line."""
    table = Table(title=safe(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # a truncated hash would be useless
    for key, value in pairs.items():
        table.add_row(safe(key), safe(show(value)))
    _print(table)


def _is_numeric(rows: Sequence[Sequence[Any]], number: int) -> bool:
    return bool(rows) and all(isinstance(row[number], int | float) for row in rows)


def _line(text: str, longest: int) -> str:
    line = " ".join(visible(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _truncated(line: str) -> Text:
    """A cell that ends in … where its column is too narrow."""
    return Text(line, overflow="ellipsis", no_wrap=True)


def show(value: Any) -> str:
    """A cell's text: four significant decimals for a float, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 and value else f"{value:,.4f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {show(v)}" for key, v in value.items())
    return str(value)


def size(num_bytes: float) -> str:
    """A number of bytes for people: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def _is_live() -> bool:
    """Whether stderr can show moving bars: a terminal, or a notebook with the widgets for it."""
    return stderr.is_terminal or (stderr.is_jupyter and find_spec("ipywidgets") is not None)


class Steps:
    """Advances one progress bar, or prints a line every 30 seconds without a terminal. `progress` creates it."""

    def __init__(self, bar: Progress, total: int, description: str) -> None:
        self._bar = bar
        self._task = bar.add_task(visible(description), total=total)
        self._spoken = self._logged = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Moves the bar on."""
        self._bar.advance(self._task, steps)
        # A line per batch would make logs of gigabytes for a dump of a corpus.
        if time.monotonic() - self._logged > LOG_EVERY_S:
            self._logged = time.monotonic()
            self.log()
        if not _is_live() and not progress_disabled() and time.monotonic() - self._spoken > LINE_EVERY_S:
            self._spoken = time.monotonic()
            state = self._bar.tasks[self._task]
            note(f"{state.description}: {state.completed:,.0f} of {state.total:,.0f}")

    def log(self) -> None:
        """Logs the progress."""
        state = self._bar.tasks[self._task]
        log.event("progress", what=state.description, done=int(state.completed), total=int(state.total or 0))

    def describe(self, description: str) -> None:
        """Changes the text next to the bar."""
        self._bar.update(self._task, description=visible(description))


@contextmanager
def progress(total: int, description: str) -> Iterator[Steps]:
    """Shows the progress of the block, on the main process only."""
    silent = not is_main_process() or progress_disabled() or not _is_live()
    # Descriptions contain names of sets from elsewhere, so rich must not read their brackets as markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, disable=silent) as bar:
        steps = Steps(bar, total, description)
        yield steps
        steps.log()


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
