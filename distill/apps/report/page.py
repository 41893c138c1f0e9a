"""The parts of a page, and their rendering as one self-contained HTML file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.console import show
from pipeline.files import make_folder, write_text_alone

# The figures of a chart, or rows of a table of data.
Rows = list[dict[str, Any]]
TEXT_LENGTH = 180


@dataclass(frozen=True)
class Picture:
    """A chart with its caption.

    Attributes:
        svg: inline SVG, made by `distill.apps.svg`.
        rows: the numbers in the chart.
    """

    title: str
    svg: str
    caption: str
    rows: Rows


@dataclass(frozen=True)
class Table:
    """Rows of cells under a title. Numbers are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with its content: sentences, named values, charts, tables."""

    title: str
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole report. ``kind`` is what it describes."""

    kind: str
    title: str
    lead: str
    sections: tuple[Section, ...]

    def figures(self) -> list[dict[str, Any]]:
        """What the pictures show, as plain values."""
        return [
            {"section": section.title, "title": picture.title, "rows": picture.rows}
            for section in self.sections
            for picture in section.pictures
        ]


def write_page(path: Path, page: Page) -> None:
    """Writes a page as a file, and makes its folder.

    Raises:
        DataError: if the file cannot be written.
    """
    make_folder(path.parent)
    write_text_alone(path, render(page))


def render(page: Page) -> str:
    """Renders the page as HTML.

    All texts are escaped, because a set may be hostile. Only our own charts are not escaped.
    """
    environment = Environment(
        # The style is that of all pages of distill.
        loader=ChoiceLoader([PackageLoader("distill.apps.report", "."), PackageLoader("student.page", ".")]),
        autoescape=True,
        # A misspelt name in the template fails instead of leaving a gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"show": show, "cell": _cell, "drawing": Markup}
    environment.tests["figure"] = lambda cell: cell is None or (isinstance(cell, int | float) and cell is not True)
    return environment.get_template("page.html").render(page=page) + "\n"


def _cell(value: int | float | str | None) -> str:
    """Returns the text of a cell. All numbers of a column have the same number of decimals."""
    if not isinstance(value, float):
        return show(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"


def clipped(text: str | None, length: int = TEXT_LENGTH) -> str:
    """Returns a text on one line, at most ``length`` long, without characters that cannot be printed."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text or "").split())
    return line if len(line) <= length else line[: length - 1] + "…"


def name_of(names: tuple[str, ...], number: int) -> str:
    """Returns the name of a class, or its number if it has no name."""
    return names[number] if 0 <= number < len(names) else str(number)
