"""What has been measured as a picture and as a table."""

from itertools import product
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from distill.apps.svg import FAINT, SERIES, write_picture
from pipeline import console

Points = dict[str, dict[str, dict[str, float]]]  # by step and number of rows: seconds and bytes
LINES = list(product(("-", "--", ":"), SERIES))
SIZE = (9.0, 4.8)  # inches
TEXT = """# Growth

Time and peak memory by the number of training rows, without the memory of imported libraries. Every point was measured
in its own process. Rows are single sentences of twelve random words out of {words:,}. The teacher is a BERT with one
layer of width 32, so the numbers show the cost of the pipeline and not of a real BERT. `train` is one epoch of the
default student with batches of 256 and includes `load`, and `finetune` is one epoch of that BERT. "More a row" is the
slope between the two largest points. Data that is processed in pieces has a slope near zero, and data in memory exists
only once.

![Time and memory by the number of rows](growth.svg)

{seconds}
{bytes}
`python -m tests.benchmarks.growth` measured these numbers, and its flag `--draw` writes this page.
"""


def draw(points: Points, path: Path) -> None:
    """Draws time and memory by rows, both on logarithmic axes."""

    def both(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _lines(left, points, "seconds", "s")
        _lines(right, points, "bytes", "B")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, ncols=4, loc="outside lower center")

    write_picture(path, SIZE, both)


def _lines(axes: Axes, points: Points, quantity: str, unit: str) -> None:
    for (step, by_rows), (style, colour) in zip(points.items(), LINES, strict=False):
        places = sorted(by_rows, key=int)
        values = [by_rows[rows][quantity] for rows in places]
        axes.plot([int(rows) for rows in places], values, style, color=colour, marker="o", markersize=3, label=step)
    axes.set(xscale="log", yscale="log", xlabel="training rows")
    axes.set_title({"s": "time", "B": "memory"}[unit], loc="left", fontsize=9, fontweight="bold")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_major_formatter(EngFormatter(unit))
    axes.grid(color=FAINT, alpha=0.35)


def write_table(points: Points, path: Path, words: int) -> None:
    """Writes the page with both tables."""
    tables = {quantity: _table(points, quantity) for quantity in ("seconds", "bytes")}
    path.write_text(TEXT.format(words=words, **tables), encoding="utf-8")


def _table(points: Points, quantity: str) -> str:
    columns = sorted({int(rows) for by_rows in points.values() for rows in by_rows})
    heads = ["time" if quantity == "seconds" else "memory", *(f"{rows:,}" for rows in columns), "more a row"]
    lines = [heads, ["---"] * len(heads)]
    for step, by_rows in points.items():
        values = {int(rows): figures[quantity] for rows, figures in by_rows.items()}
        cells = [_shown(values[rows], quantity) if rows in values else "" for rows in columns]
        lines.append([step, *cells, _slope(values, quantity)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _slope(values: dict[int, float], quantity: str) -> str:
    if len(values) < 2:
        return ""
    low, high = sorted(values)[-2:]
    slope = (values[high] - values[low]) / (high - low)
    return f"{1e6 * slope:,.1f} µs" if quantity == "seconds" else f"{slope:,.0f} B"


def _shown(value: float, quantity: str) -> str:
    return f"{value:,.1f} s" if quantity == "seconds" else console.size(value)
