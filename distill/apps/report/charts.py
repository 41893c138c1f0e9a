"""The charts of a report with their figures. Titles and captions come from the caller.

Shapes: N rows.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator

from distill.apps.report.page import Picture, Rows, clipped
from distill.apps.svg import BLUE, FAINT, INK, RED, SERIES, drawing
from pipeline.arrays import Floats, Floats64, Ints

Limits = tuple[float, float]
Labels = tuple[str, str]  # of two axes
Confusion = Mapping[str, Mapping[str, int]]  # the number of rows by two names
CELLS = 20  # to either side of a density
MOST_WRITTEN_CLASSES, MOST_NAMED_CLASSES = 10, 30
MOST_TICKS = 12
# Ratio of largest to smallest value from which a logarithmic axis is easier to read.
WIDE = 30
# Opacity limit of a cell, so that the text on it stays readable.
DARKEST = 0.75


def reliability(title: str, bins: Rows, axes: Labels, caption: str) -> Picture:
    """Accuracy by confidence, from `calibration_bins`. The area of a dot is its share of the rows."""
    total = sum(row["n"] for row in bins)
    left = min(row["confidence_from"] for row in bins)

    def draw(plot: Axes) -> None:
        plot.plot([left, 1], [left, 1], color=FAINT, linestyle="--", linewidth=1)
        middles = [(row["confidence_from"] + row["confidence_to"]) / 2 for row in bins]
        widths = [0.9 * (row["confidence_to"] - row["confidence_from"]) for row in bins]
        plot.bar(middles, [row["accuracy"] for row in bins], width=widths, color=BLUE, alpha=0.3)
        for row in bins:
            size = 15 + 250 * row["n"] / total
            plot.scatter(row["confidence"], row["accuracy"], s=size, color=BLUE, linewidths=0)
        plot.set(xlim=(left - 0.02, 1.04), ylim=(0, 1.04), xlabel=axes[0], ylabel=axes[1])

    return Picture(title, drawing(draw), caption, bins)


def histogram(
    title: str,
    counts: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
    limits: Limits,
    axes: Labels,
    caption: str,
) -> Picture:
    """Stacked histograms over bins of one width, one colour per name."""
    edges = np.linspace(*limits, len(next(iter(counts.values()))) + 1).tolist()

    def draw(plot: Axes) -> None:
        widths = [0.94 * (high - low) for low, high in pairwise(edges)]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        base = np.zeros(len(middles))
        for name, heights in counts.items():
            plot.bar(middles, heights, widths, bottom=base, color=colours[name], label=name, linewidth=0)
            base = base + heights
        plot.set(xlim=limits, xlabel=axes[0], ylabel=axes[1])
        plot.yaxis.set_major_formatter("{x:,.0f}")
        if len(counts) > 1:
            plot.legend(ncols=len(counts), loc="lower center", bbox_to_anchor=(0.5, 1))

    figures = [
        {"from": low, "to": high} | {name: heights[k] for name, heights in counts.items()}
        for k, (low, high) in enumerate(pairwise(edges))
    ]
    return Picture(title, drawing(draw), caption, figures)


def matrix(title: str, counts: Confusion, names: Sequence[str], axes: Labels, caption: str) -> Picture:
    """How often two names occur together, the first one down, shaded by its share of the row."""
    size, place = len(names), {name: number for number, name in enumerate(names)}
    down, across = axes

    def draw(plot: Axes) -> None:
        for name, row in counts.items():
            for other, n in row.items():
                x, y, share = place[other], place[name], n / sum(row.values())
                plot.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=BLUE, alpha=DARKEST * share, linewidth=0))
                if size <= MOST_WRITTEN_CLASSES:
                    # A share that is not zero is not written as zero.
                    text = f"{n:,}\n{'<1%' if 0 < share < 0.005 else f'{share:.0%}'}"
                    plot.text(x, y, text, ha="center", va="center", fontsize=9 if size < 5 else 7)
        plot.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xlabel=across, ylabel=down)
        if size <= MOST_NAMED_CLASSES:
            short = [clipped(name, 18) for name in names]
            plot.set_xticks(range(size), short, rotation=0 if size <= 3 else 60, ha="center" if size <= 3 else "right")
            plot.set_yticks(range(size), short)
        plot.tick_params(length=0)

    figures = [{down: name, across: other, "n": n} for name, row in counts.items() for other, n in row.items()]
    return Picture(title, drawing(draw), caption, figures)


def shades(title: str, words: Sequence[str], values: Mapping[str, Sequence[float]], caption: str) -> Picture:
    """A column for each name with a cell per word.

    The larger a value relative to its column, the stronger the colour.
    """

    def draw(plot: Axes) -> None:
        for column, numbers in enumerate(values.values()):
            largest = max(map(abs, numbers), default=0)
            for row, value in enumerate(numbers):
                colour, share = (BLUE if value > 0 else RED), abs(value) / largest if largest else 0
                place = (column - 0.48, row - 0.48)
                plot.add_patch(Rectangle(place, 0.96, 0.96, color=colour, alpha=share, linewidth=0))
        plot.set(xlim=(-0.5, len(values) - 0.5), ylim=(len(words) - 0.5, -0.5))
        is_crowded = len(values) > 3
        names = [clipped(name, 18) for name in values]
        plot.set_xticks(range(len(values)), names, rotation=60 * is_crowded, ha="right" if is_crowded else "center")
        size = 9 if len(words) <= MOST_TICKS else 6
        plot.set_yticks(range(len(words)), [clipped(word, 18) for word in words], fontsize=size)
        plot.tick_params(length=0)

    figures = [{"word": word} | {name: of[k] for name, of in values.items()} for k, word in enumerate(words)]
    return Picture(title, drawing(draw), caption, figures)


def density(title: str, a_N: Floats, b_N: Floats, limits: Limits, axes: Labels, caption: str) -> Picture:
    """How many rows lie in each cell of a grid over a square, by two scores of each row, with its diagonal."""
    places = np.stack([bins_of(a_N, limits, CELLS), bins_of(b_N, limits, CELLS)])
    cells, counts = np.unique(places, axis=1, return_counts=True)
    low, step = limits[0], (limits[1] - limits[0]) / CELLS
    corners = [(low + float(x) * step, low + float(y) * step) for x, y in cells.T]

    def draw(plot: Axes) -> None:
        for corner, n in zip(corners, counts, strict=True):
            # The square root and the offset keep cells with few rows visible beside the fullest one.
            shade = 0.15 + 0.85 * (n / counts.max()) ** 0.5
            plot.add_patch(Rectangle(corner, step, step, color=BLUE, alpha=shade, linewidth=0))
        plot.plot(limits, limits, color=INK, linestyle="--", linewidth=0.8)
        plot.set(xlim=limits, ylim=limits, xlabel=axes[0], ylabel=axes[1], aspect="equal")

    figures = [
        {f"{axes[0]} from": x, f"{axes[1]} from": y, "n": int(n)} for (x, y), n in zip(corners, counts, strict=True)
    ]
    return Picture(title, drawing(draw), caption, figures)


def bins_of(values_N: Floats | Floats64, limits: Limits, count: int) -> Ints:
    """Returns the bin of each value among bins of one width. Values beyond the limits are in the outermost bins."""
    low, high = limits
    return np.clip((values_N.astype(np.float64) - low) / (high - low) * count, 0, count - 1).astype(np.int64)


def curves(
    title: str,
    steps: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    xlabel: str,
    caption: str,
    best: int | None = None,
    levels: Mapping[str, float] | None = None,
) -> Picture:
    """Lines over epochs or steps.

    ``best`` is marked on the first line. ``levels`` are horizontal lines for comparison.
    """

    def draw(plot: Axes) -> None:
        for (name, values), colour in zip(lines.items(), SERIES * len(lines), strict=False):
            name = clipped(name, 40)
            marker = "o" if len(steps) <= WIDE else ""
            plot.plot(
                steps, values, color=colour, marker=marker, markersize=3, linewidth=1.6, label=name, clip_on=False
            )
        if best is not None:
            value = next(iter(lines.values()))[steps.index(best)]
            plot.scatter(best, value, s=110, facecolors="none", edgecolors=INK, linewidths=1.2, zorder=3, clip_on=False)
        for number, (name, value) in enumerate(sorted((levels or {}).items(), key=lambda level: -level[1])):
            plot.axhline(value, color=FAINT, linestyle="--", linewidth=1)
            # The highest level's name is above its line, the others' below, so that close levels do not overlap.
            place, align = ((0, 2), "bottom") if number == 0 else ((0, -2), "top")
            xycoords = plot.get_yaxis_transform()
            plot.annotate(name, (1, value), place, xycoords, "offset points", ha="right", va=align)
        plot.margins(y=0.1 if levels else None)  # room for the name below the lowest line
        plot.set(xlabel=xlabel)
        if len(steps) > 1:
            # The default margins would extend an axis of percent to 105.
            plot.set_xlim(min(steps), max(steps))
        if len(steps) <= MOST_TICKS:
            plot.set_xticks(steps)
        else:
            plot.xaxis.set_major_locator(MaxNLocator(integer=True))
        plot.grid(axis="y", color=FAINT, alpha=0.35)
        if len(lines) > 1:
            plot.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))

    figures = [{xlabel: step} | {name: values[k] for name, values in lines.items()} for k, step in enumerate(steps)]
    return Picture(title, drawing(draw), caption, figures)


def points(
    title: str,
    groups: Sequence[tuple[str, float, Sequence[float]]],
    best: Collection[str],
    axes: Labels,
    caption: str,
) -> Picture:
    """Scores over their cost. Each group has a label, a position on the x-axis and its scores. The best are blue."""
    places = [x for _, x, _ in groups]

    def draw(plot: Axes) -> None:
        for number, (label, x, scores) in enumerate(groups):
            colour, weight = (BLUE, "bold") if label in best else (INK, "normal")
            mean = sum(scores) / len(scores)
            plot.scatter([x] * len(scores), scores, s=16, color=colour, alpha=0.45, linewidths=0)
            plot.scatter(x, mean, s=60, color=colour, linewidths=0)
            # Alternates sides, so that labels of neighbours do not overlap.
            place, align = ((7, 0), "left") if number % 2 == 0 else ((-7, 0), "right")
            plot.annotate(label, (x, mean), place, textcoords="offset points", ha=align, va="center", weight=weight)
        if max(places) > WIDE * min(places):
            plot.set_xscale("log")
        plot.xaxis.set_major_formatter(EngFormatter())
        plot.margins(x=0.12, y=0.1)
        plot.set(xlabel=axes[0], ylabel=axes[1])
        plot.grid(color=FAINT, alpha=0.35)

    figures = [{"no.": label, axes[0]: x, axes[1]: scores} for label, x, scores in groups]
    return Picture(title, drawing(draw), caption, figures)


def trade_off(
    title: str,
    line: Sequence[tuple[float, float]],
    named: Sequence[tuple[str, float, float]],
    axes: Labels,
    caption: str,
) -> Picture:
    """A line of what can be had at each cost, and points with names, the last of which is marked."""

    def draw(plot: Axes) -> None:
        plot.plot(*zip(*sorted(line), strict=True), color=BLUE, marker="o", markersize=3, linewidth=1.6)
        for number, (name, x, y) in enumerate(named):
            plot.scatter(x, y, s=60, color=BLUE if number == len(named) - 1 else INK, linewidths=0, zorder=3)
            # Above and below in turn, because cheap stages lie close to each other.
            below = -12 if number % 2 else 8
            plot.annotate(clipped(name, 40), (x, y), (0, below), textcoords="offset points", ha="center")
        plot.margins(x=0.12, y=0.15)
        plot.set(xlabel=axes[0], ylabel=axes[1])
        plot.grid(color=FAINT, alpha=0.35)

    return Picture(title, drawing(draw), caption, [dict(zip(axes, point, strict=True)) for point in line])


def strips(title: str, groups: Mapping[str, Sequence[float]], axes: Labels, caption: str) -> Picture:
    """The scores at each value of a setting: a dot per score, and a bar at their mean."""

    def draw(plot: Axes) -> None:
        for place, scores in enumerate(groups.values()):
            plot.scatter([place] * len(scores), scores, s=22, color=BLUE, alpha=0.55, linewidths=0)
            plot.hlines(sum(scores) / len(scores), place - 0.25, place + 0.25, color=INK, linewidth=1.6)
        plot.set_xticks(range(len(groups)), [clipped(value, 18) for value in groups])
        plot.set(xlim=(-0.6, len(groups) - 0.4), xlabel=clipped(axes[0], 60), ylabel=axes[1])
        plot.grid(axis="y", color=FAINT, alpha=0.35)

    figures = [{axes[0]: value, axes[1]: scores} for value, scores in groups.items()]
    return Picture(title, drawing(draw), caption, figures)
