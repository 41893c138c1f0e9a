"""What the user sees: progress and notes on stderr, results on stdout."""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pipeline.environment import is_main_process, progress_disabled
from pipeline.plain_text import visible

LINE_EVERY_S = 30
BEYOND_ASCII = re.compile(r"[\x7f-\x9f\ud800-\udfff]")

stdout = Console()
stderr = Console(stderr=True, highlight=False)


def escape(text: str) -> str:
    """Text that shows as it is: neither markup of `rich` nor control characters count."""
    return escape_markup(visible(text))


def note(message: str) -> None:
    """Tells what is going on (stderr, main process only)."""
    if is_main_process():
        stderr.print(escape(message), soft_wrap=True)


def warn(message: str) -> None:
    """Tells of something the user should know (stderr, main process only)."""
    if is_main_process():
        stderr.print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


def error(message: str) -> None:
    """Tells why the command stops (stderr, every process)."""
    stderr.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints a result for machines; JSON spells control characters out by itself, but not those beyond ASCII."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def print_text(text: str) -> None:
    """Prints a text as it is, but for control characters."""
    sys.stdout.write(visible(text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Prints a result for people."""
    table = Table(title=None if title is None else escape(title), title_justify="left")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) for row in rows)
        table.add_column(escape(column), justify="right" if numeric and rows else "left")
    for row in rows:
        table.add_row(*(escape(show(cell)) for cell in row))
    stdout.print(table)


def print_pairs(title: str, pairs: Mapping[str, Any]) -> None:
    """Prints named values, one a line."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    for key, value in pairs.items():
        table.add_row(escape(key), escape(show(value)))
    stdout.print(table)


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
    return str(value)


def size(num_bytes: float) -> str:
    """A number of bytes for people: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


class Steps:
    """Advances one progress bar, or off a terminal prints a line now and then; created by `progress`."""

    def __init__(self, bar: Progress, total: int, description: str) -> None:
        self._bar = bar
        self._task = bar.add_task(description, total=total)
        self._spoken = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Moves the bar on."""
        self._bar.advance(self._task, steps)
        if not stderr.is_terminal and not progress_disabled() and time.monotonic() - self._spoken > LINE_EVERY_S:
            self._spoken = time.monotonic()
            state = self._bar.tasks[self._task]
            note(f"{state.description}: {state.completed:,.0f} of {state.total:,.0f}")

    def describe(self, description: str) -> None:
        """Changes the text beside the bar."""
        self._bar.update(self._task, description=description)


@contextmanager
def progress(total: int, description: str) -> Iterator[Steps]:
    """Shows how far the block has come, on the main process only."""
    silent = not is_main_process() or progress_disabled() or not stderr.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, disable=silent) as bar:
        yield Steps(bar, total, description)
