"""The figures of a benchmark: for people a table and a chart for each measure, for machines JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.apps.bench.sentences import MEASURES
from distill.apps.bench.timing import ComputePlace, Speed, processor
from distill.result import Table
from pipeline import console

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROWEST_BAR, OTHER_COLUMNS = 12, 70  # characters
EIGHTHS = " ▏▎▍▌▋▊▉"
WIDTH, HEIGHT_OF_A_MEASURE, HEIGHT_OF_A_BAR = 8.0, 0.7, 0.14  # inches


def speed_tables(speeds: Sequence[Speed]) -> list[Table]:
    """Returns a table for each measure and kind of device; bars and ratios are of its last column."""
    tables = []
    for measure, title in MEASURES.items():
        for device in dict.fromkeys(speed.device for speed in speeds):
            here = [speed for speed in speeds if speed.measure == measure and speed.device == device]
            places = list(dict.fromkeys(speed.place for speed in here))
            tables.append(_table(f"sentences a second, {title}", places, by_model(here)))
    return tables


def as_json(speeds: Sequence[Speed], settings: dict[str, Any]) -> dict[str, Any]:
    """The figures for machines: what was measured on, how it was asked for, and every speed."""
    machine = {
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
    }
    return {"machine": machine, **settings, "speeds": [asdict(speed) for speed in speeds]}


def _table(title: str, places: Sequence[ComputePlace], models: Sequence[Sequence[Speed]]) -> Table:
    last = [speeds[-1].sentences_per_second for speeds in models]
    bars = log_bars(last, max(NARROWEST_BAR, console.stdout.width - OTHER_COLUMNS))
    rows = [
        [
            label(speeds[0]),
            f"{speeds[0].num_parameters / 1e6:.1f} M",
            *(round(speed.sentences_per_second) for speed in speeds),
            f"{last[0] / rate:,.3g} x",
            bar,
        ]
        for speeds, rate, bar in zip(models, last, bars, strict=True)
    ]
    return Table(["", "weights", *map(str, places), "student is", "(log scale)"], rows, title)


def label(speed: Speed) -> str:
    """Who was timed, in short."""
    return f"{speed.model} {speed.precision}"


def by_model(speeds: Sequence[Speed]) -> list[list[Speed]]:
    """The speeds of each model in each precision, in the order in which they came."""
    names = list(dict.fromkeys((speed.model, speed.precision) for speed in speeds))
    ordered = sorted(speeds, key=lambda speed: names.index((speed.model, speed.precision)))
    return [list(group) for _, group in groupby(ordered, key=lambda speed: (speed.model, speed.precision))]


def log_bars(values: Sequence[float], width: int = 30) -> list[str]:
    """A bar for each value, the largest as wide as ``width`` characters.

    The scale begins at the last power of ten below the smallest value, so that every bar can be seen.

    Args:
        values: all above 0.
        width: of the longest bar.
    """
    low = ceil(log10(min(values))) - 1
    scale = width / (log10(max(values)) - low)
    return [_bar((log10(value) - low) * scale) for value in values]


def _bar(length: float) -> str:
    eighths = max(1, round(8 * length))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def draw_speeds(path: Path, speeds: Sequence[Speed]) -> None:
    """Draws bars on a logarithmic scale for every measure, model and place, into an .svg or .png file."""
    places = list(dict.fromkeys(speed.place for speed in speeds))

    def draw(figure: "Figure") -> None:
        all_axes = figure.subplots(len(MEASURES), 1, sharex=True)
        for axes, (measure, title) in zip(all_axes, MEASURES.items(), strict=True):
            _draw_measure(axes, [speed for speed in speeds if speed.measure == measure], places)
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        all_axes[-1].set_xlabel("sentences a second")
        all_axes[0].legend(ncols=len(places), loc="lower right", bbox_to_anchor=(1, 1))

    height = len(MEASURES) * HEIGHT_OF_A_MEASURE + len(speeds) * HEIGHT_OF_A_BAR
    from distill.apps.svg import write_picture

    write_picture(path, (WIDTH, height), draw)


def _draw_measure(axes: "Axes", speeds: Sequence[Speed], places: Sequence[object]) -> None:
    models = by_model(speeds)
    height = 0.84 / len(places)
    from distill.apps.svg import FAINT, SERIES

    for number, (place, colour) in enumerate(zip(places, SERIES, strict=False)):
        for row, group in enumerate(models):
            for speed in (one for one in group if one.place == place):
                rate = speed.sentences_per_second
                bar = axes.barh(row + (number + 0.5) * height - 0.42, rate, height, color=colour)
                axes.bar_label(bar, [f"{rate:,.0f}"], padding=3, fontsize=7)
                bar.set_label(str(place) if row == 0 else "_")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.1, y=0.02)
    axes.set_yticks(range(len(models)), [label(group[0]) for group in models])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, alpha=0.35)
