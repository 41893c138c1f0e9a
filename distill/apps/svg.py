"""Renders a matplotlib figure as inline SVG in a page's colours, or as a file, with reproducible bytes."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.files import write_alone

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType  # since matplotlib 3.11

# Okabe and Ito's palette, safe for colour-blind readers. The page has a lighter tone of each for dark mode.
BLUE, RED, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
# Unusual values on purpose: they are replaced by CSS variables, and matplotlib's own black or grey must not match.
INK, FAINT = "#000001", "#aaaaab"
SERIES = (BLUE, RED, GREEN, PURPLE)
VARIABLES = {
    BLUE: "var(--blue)",
    RED: "var(--red)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    INK: "currentColor",
    FAINT: "var(--faint)",
}
STYLE: "dict[RcKeyType, object]" = {
    # Text stays text, so that the page's font applies and people can select it.
    "svg.fonttype": "none",
    "svg.hashsalt": "distill",
    # A dollar sign in a label is no formula.
    "text.parse_math": False,
    # Comes with matplotlib, so text has the same width on every machine.
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
SIZE = (4.6, 3.5)  # inches
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def drawing(draw: Callable[[Axes], None]) -> str:
    """Returns the drawing of ``draw`` as inline SVG."""
    buffer = io.StringIO()
    with _our_style():
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    text = buffer.getvalue()
    # matplotlib's style element would apply to the whole page, not only to its own chart.
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r"<[^<>]*>", lambda tag: _page_tag(tag.group()), text)


def write_picture(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Writes the drawing of ``draw`` to a file, on a white background.

    Args:
        path: ends in .svg or .png.
        size: width and height in inches.
        draw: adds axes and draws on them.

    Raises:
        DataError: if the file cannot be written.
    """
    kind = path.suffix.removeprefix(".")
    with _our_style():
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        metadata = NO_METADATA if kind == "svg" else None
        write_alone(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=metadata))


@contextmanager
def _our_style() -> Iterator[None]:
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Glyphs that this font lacks exist in the browser's fonts.
        warnings.simplefilter("ignore")
        # Ignores the user's matplotlibrc, which would change the bytes.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _page_tag(tag: str) -> str:
    """Returns a tag without namespaces and names of groups, in the colours of the page."""
    if tag.startswith("<svg"):
        box = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg {box.group() if box else ""} role="img">'
    if tag.startswith("<g "):
        tag = re.sub(r' id="[^"]*"', "", tag)
    return re.sub("|".join(VARIABLES), lambda colour: VARIABLES[colour.group()], tag)
