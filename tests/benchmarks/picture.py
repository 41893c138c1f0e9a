"""Draws ``docs/speed-accuracy.svg`` from the table of ``docs/results.md``: ``python -m tests.benchmarks.picture``."""

import re
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from distill.apps.svg import BLUE, FAINT, INK, RED, write_picture

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs/results.md", ROOT / "docs/speed-accuracy.svg"
SIZE = (7.2, 3.6)  # inches
Point = tuple[float, float, float]  # accuracy, least and greatest throughput


def points() -> dict[str, Point]:
    """The rows of the table under the heading "Accuracy and speed", by model."""
    section = PAGE.read_text(encoding="utf-8").split("## Accuracy and speed\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| \**([\d.]+)\** \| ([\d,.]+)(?: to ([\d,.]+))? \|", section, re.MULTILINE)
    return {name: (float(accuracy), number(low), number(high or low)) for name, accuracy, low, high in rows}


def number(text: str) -> float:
    """A number of the table, such as ``1,000``."""
    return float(text.replace(",", ""))


def draw(models: Mapping[str, Point], path: Path) -> None:
    """Draws accuracy over throughput: students blue, the teacher red, baselines in ink."""

    def scatter(figure: Figure) -> None:
        axes = figure.subplots()
        for name, (accuracy, low, high) in models.items():
            colour = RED if name.startswith("teacher") else BLUE if "student" in name else INK
            middle = (low * high) ** 0.5
            axes.plot([low, high], [accuracy, accuracy], color=colour, linewidth=1)
            axes.plot([middle], [accuracy], "o", color=colour, markersize=7)
            axes.annotate(
                f"{name}: {accuracy}",
                (middle, accuracy),
                # Below the point if there is another one close above it.
                (0, -14 if any(0 < other - accuracy < 0.5 for other, _, _ in models.values()) else 8),
                textcoords="offset points",
                ha="left" if middle < 10 else "right" if middle > 100 else "center",
                color=colour,
            )
        axes.set(xscale="log", xlim=(0.7, 1500), ylim=(78.5, 90.5), ylabel="SST-2 accuracy, %")
        axes.set_xlabel("sentences per second on one CPU core, teacher = 1")
        axes.set_xticks([1, 10, 100, 1000], ["1x", "10x", "100x", "1,000x"])
        axes.grid(color=FAINT, alpha=0.35)

    write_picture(path, SIZE, scatter)


def main() -> None:
    """Draws the picture anew."""
    draw(points(), PICTURE)


if __name__ == "__main__":
    main()
