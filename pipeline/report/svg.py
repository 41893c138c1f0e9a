"""A matplotlib figure as SVG inside a page: its colours are the page's, and the same figure gives the same bytes."""

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType  # since matplotlib 3.11

# Okabe and Ito's palette, which the colour-blind can tell apart. The page has a lighter tone of each for dark screens.
BLUE, RED, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
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
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "distill",
    "text.parse_math": False,  # a label may hold a dollar
    "font.family": "DejaVu Sans",  # matplotlib's own, there on every machine
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


def drawing(draw: Callable[[Axes], None]) -> str:
    """What ``draw`` puts on the axes, as inline SVG."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that its font lacks; the browser's has them
        matplotlib.rcdefaults()  # whatever a user's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)  # it would rule the page
    return re.sub(r"<[^<>]*>", lambda tag: _page_tag(tag.group()), text)


def _page_tag(tag: str) -> str:
    """A tag as a page needs it: without namespaces and names of groups, in the page's colours."""
    if tag.startswith("<svg"):
        box = re.search(r'viewBox="[^"]*"', tag)
        return f'<svg {box.group() if box else ""} role="img">'
    if tag.startswith("<g "):
        tag = re.sub(r' id="[^"]*"', "", tag)
    return re.sub("|".join(VARIABLES), lambda colour: VARIABLES[colour.group()], tag)
