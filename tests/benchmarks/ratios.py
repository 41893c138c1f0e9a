"""What the benchmarks share: a table of ratios."""


def ratios(seconds: dict[str, float]) -> list[list[object]]:
    """A row per alternative: name, median milliseconds, and how many times faster than the first it is."""
    first = next(iter(seconds.values()))
    return [[name, value * 1000, first / value] for name, value in seconds.items()]
