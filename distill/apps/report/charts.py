"""The charts of a report, drawn from plain rows or lists. Captions come from the caller."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator

from distill.apps.report.page import Rows, clipped
from distill.apps.svg import BLUE, FAINT, INK, RED, SERIES, drawing

Limits = tuple[float, float]
MOST_WRITTEN_CLASSES, MOST_NAMED_CLASSES = 10, 30
MOST_TICKS = 12
# Ratio of largest to smallest value from which a logarithmic axis is easier to read.
WIDE = 30
# Opacity limit of a cell, so that the text on it stays readable.
DARKEST = 0.75


def reliability(bins: Rows, xlabel: str = "confidence", ylabel: str = "share of right answers") -> str:
    """Accuracy by confidence, from the rows of the macro ``calibration``.

    The area of a dot is its share of the rows.
    """
    total = sum(row["n"] for row in bins)
    left = min(row["confidence_from"] for row in bins)

    def draw(axes: Axes) -> None:
        axes.plot([left, 1], [left, 1], color=FAINT, linestyle="--", linewidth=1)
        axes.bar(
            [(row["confidence_from"] + row["confidence_to"]) / 2 for row in bins],
            [row["accuracy"] for row in bins],
            width=[0.9 * (row["confidence_to"] - row["confidence_from"]) for row in bins],
            color=BLUE,
            alpha=0.3,
        )
        for row in bins:
            size = 15 + 250 * row["n"] / total
            axes.scatter(row["confidence"], row["accuracy"], s=size, color=BLUE, linewidths=0)
        axes.set(xlim=(left - 0.02, 1.04), ylim=(0, 1.04), xlabel=xlabel, ylabel=ylabel)

    return drawing(draw)


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
    xlabel: str,
    ylabel: str = "rows",
) -> str:
    """Stacked histograms, one colour per name."""

    def draw(axes: Axes) -> None:
        widths = [0.94 * (high - low) for low, high in pairwise(edges)]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        base = [0] * len(middles)
        for name, heights in counts.items():
            axes.bar(middles, heights, widths, bottom=base, color=colours[name], label=name, linewidth=0)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        axes.set(xlim=(edges[0], edges[-1]), xlabel=xlabel, ylabel=ylabel)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        if len(counts) > 1:
            axes.legend(ncols=len(counts), loc="lower center", bbox_to_anchor=(0.5, 1))

    return drawing(draw)


def matrix(names: Sequence[str], counts: Mapping[tuple[int, int], int], ylabel: str, xlabel: str) -> str:
    """How often ``(row, column)`` occurs, shaded by its share of the row."""
    size = len(names)
    totals = [sum(counts.get((row, column), 0) for column in range(size)) for row in range(size)]

    def draw(axes: Axes) -> None:
        for (row, column), n in counts.items():
            share = n / totals[row]
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=BLUE, alpha=DARKEST * share, linewidth=0))
            if size <= MOST_WRITTEN_CLASSES:
                axes.text(
                    column, row, f"{n:,}\n{_percent(share)}", ha="center", va="center", fontsize=9 if size < 5 else 7
                )
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel=xlabel, ylabel=ylabel)
        if size <= MOST_NAMED_CLASSES:
            short = [clipped(name, 18) for name in names]
            axes.set_xticks(range(size), short, rotation=0 if size <= 3 else 60, ha="center" if size <= 3 else "right")
            axes.set_yticks(range(size), short)
        axes.tick_params(length=0)

    return drawing(draw)


def _percent(share: float) -> str:
    """A share in percent, where one that is not zero is not written as zero."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def shades(words: Sequence[str], values: Mapping[str, Sequence[float]]) -> str:
    """A column for each name with a cell per word.

    The larger a value relative to its column, the stronger the colour.
    """

    def draw(axes: Axes) -> None:
        for column, numbers in enumerate(values.values()):
            largest = max(map(abs, numbers), default=0)
            for row, value in enumerate(numbers):
                colour, share = (BLUE if value > 0 else RED), abs(value) / largest if largest else 0
                place = (column - 0.48, row - 0.48)
                axes.add_patch(Rectangle(place, 0.96, 0.96, color=colour, alpha=share, linewidth=0))
        axes.set(xlim=(-0.5, len(values) - 0.5), ylim=(len(words) - 0.5, -0.5))
        is_crowded = len(values) > 3
        names = [clipped(name, 18) for name in values]
        axes.set_xticks(range(len(values)), names, rotation=60 * is_crowded, ha="right" if is_crowded else "center")
        size = 9 if len(words) <= MOST_TICKS else 6
        axes.set_yticks(range(len(words)), [clipped(word, 18) for word in words], fontsize=size)
        axes.tick_params(length=0)

    return drawing(draw)


def density(counts: Mapping[tuple[int, int], int], cells: int, limits: Limits, xlabel: str, ylabel: str) -> str:
    """How many rows lie in each cell ``(x, y)`` of a grid over a square, with its diagonal."""
    low, high = limits
    step = (high - low) / cells
    most = max(counts.values())

    def draw(axes: Axes) -> None:
        for (x, y), n in counts.items():
            # The square root and the offset keep cells with few rows visible beside the fullest one.
            shade = 0.15 + 0.85 * (n / most) ** 0.5
            axes.add_patch(
                Rectangle((low + x * step, low + y * step), step, step, color=BLUE, alpha=shade, linewidth=0)
            )
        axes.plot(limits, limits, color=INK, linestyle="--", linewidth=0.8)
        axes.set(xlim=limits, ylim=limits, xlabel=xlabel, ylabel=ylabel, aspect="equal")

    return drawing(draw)


def curves(
    steps: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    xlabel: str,
    best: int | None = None,
    levels: Mapping[str, float] | None = None,
) -> str:
    """Lines over epochs or steps.

    ``best`` is marked on the first line. ``levels`` are horizontal lines for comparison.
    """

    def draw(axes: Axes) -> None:
        for (name, values), colour in zip(lines.items(), SERIES * len(lines), strict=False):
            name = clipped(name, 40)
            axes.plot(steps, values, color=colour, marker="o", markersize=3, linewidth=1.6, label=name, clip_on=False)
        if best is not None:
            value = next(iter(lines.values()))[steps.index(best)]
            axes.scatter(best, value, s=110, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=3)
        for name, value in (levels or {}).items():
            axes.axhline(value, color=FAINT, linestyle="--", linewidth=1)
            axes.text(1, value, name, transform=axes.get_yaxis_transform(), ha="right", va="bottom")
        axes.set(xlabel=xlabel)
        if len(steps) > 1:
            # The default margins would extend an axis of percent to 105.
            axes.set_xlim(min(steps), max(steps))
        if len(steps) <= MOST_TICKS:
            axes.set_xticks(steps)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=FAINT, alpha=0.35)
        if len(lines) > 1:
            axes.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))

    return drawing(draw)


def points(
    groups: Sequence[tuple[str, float, Sequence[float]]], best: Collection[str], xlabel: str, ylabel: str
) -> str:
    """Scores over their cost. Each group has a label, a position on the x-axis and its scores. The best are blue."""
    places = [x for _, x, _ in groups]

    def draw(axes: Axes) -> None:
        for number, (label, x, scores) in enumerate(groups):
            colour, weight = (BLUE, "bold") if label in best else (INK, "normal")
            mean = sum(scores) / len(scores)
            axes.scatter([x] * len(scores), scores, s=16, color=colour, alpha=0.45, linewidths=0)
            axes.scatter(x, mean, s=60, color=colour, linewidths=0)
            # Alternates sides, so that labels of neighbours do not overlap.
            side = 1 - 2 * (number % 2)
            align = "left" if side > 0 else "right"
            axes.annotate(
                label, (x, mean), (7 * side, 0), textcoords="offset points", ha=align, va="center", weight=weight
            )
        if max(places) > WIDE * min(places):
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.margins(x=0.12, y=0.1)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(color=FAINT, alpha=0.35)

    return drawing(draw)


def trade_off(
    line: Sequence[tuple[float, float]], named: Sequence[tuple[str, float, float]], xlabel: str, ylabel: str
) -> str:
    """A line of what can be had at each cost, and points with names, the last of which is marked."""

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*sorted(line), strict=True), color=BLUE, marker="o", markersize=3, linewidth=1.6)
        for number, (name, x, y) in enumerate(named):
            colour = BLUE if number == len(named) - 1 else INK
            axes.scatter(x, y, s=60, color=colour, linewidths=0, zorder=3)
            # Above and below in turn, because cheap stages lie close to each other.
            below = -12 if number % 2 else 8
            axes.annotate(clipped(name, 40), (x, y), (0, below), textcoords="offset points", ha="center")
        axes.margins(x=0.12, y=0.15)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(color=FAINT, alpha=0.35)

    return drawing(draw)


def strips(groups: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> str:
    """The scores at each value of a setting: a dot per score, and a bar at their mean."""

    def draw(axes: Axes) -> None:
        for place, scores in enumerate(groups.values()):
            axes.scatter([place] * len(scores), scores, s=22, color=BLUE, alpha=0.55, linewidths=0)
            axes.hlines(sum(scores) / len(scores), place - 0.25, place + 0.25, color=INK, linewidth=1.6)
        axes.set_xticks(range(len(groups)), [clipped(value, 18) for value in groups])
        axes.set(xlim=(-0.6, len(groups) - 0.4), xlabel=clipped(xlabel, 60), ylabel=ylabel)
        axes.grid(axis="y", color=FAINT, alpha=0.35)

    return drawing(draw)
