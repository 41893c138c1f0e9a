"""Bars of a chart in a terminal, on a logarithmic scale."""

from collections.abc import Sequence
from math import ceil, log10

EIGHTHS = " ▏▎▍▌▋▊▉"


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
