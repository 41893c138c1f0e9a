"""The figures of a benchmark as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distill.apps.bench.run import Speed
from distill.apps.bench.sentences import MEASURES
from distill.apps.bench.show import by_model, label
from distill.apps.svg import FAINT, SERIES, write_picture

WIDTH, HEIGHT_OF_A_MEASURE, HEIGHT_OF_A_BAR = 8.0, 0.7, 0.14  # inches


def draw_speeds(path: Path, speeds: Sequence[Speed]) -> None:
    """Draws bars on a logarithmic scale for every measure, model and place, into an .svg or .png file."""
    places = list(dict.fromkeys(speed.place for speed in speeds))

    def draw(figure: Figure) -> None:
        all_axes = figure.subplots(len(MEASURES), 1, sharex=True)
        for axes, (measure, title) in zip(all_axes, MEASURES.items(), strict=True):
            _draw_measure(axes, [speed for speed in speeds if speed.measure == measure], places)
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        all_axes[-1].set_xlabel("sentences a second")
        all_axes[0].legend(ncols=len(places), loc="lower right", bbox_to_anchor=(1, 1))

    height = len(MEASURES) * HEIGHT_OF_A_MEASURE + len(speeds) * HEIGHT_OF_A_BAR
    write_picture(path, (WIDTH, height), draw)


def _draw_measure(axes: Axes, speeds: Sequence[Speed], places: Sequence[object]) -> None:
    models = by_model(speeds)
    height = 0.84 / len(places)
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
