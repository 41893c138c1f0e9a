from hypothesis import given
from hypothesis import strategies as st

from distill.apps.bench.timing import log_bars


def test_bars_of_powers_of_ten_are_equally_spaced() -> None:
    assert log_bars([1, 10, 100], width=6) == ["██", "████", "██████"]
    assert log_bars([100, 1, 10], width=6) == ["██████", "██", "████"]


def test_the_scale_begins_at_a_power_of_ten() -> None:
    assert log_bars([10**0.5, 10**1.25, 100], width=4) == ["█", "██▌", "████"]


def test_a_single_value_and_equal_ones_are_seen() -> None:
    assert log_bars([7], width=5) == ["█████"]
    assert log_bars([10, 10], width=5) == ["█████"] * 2
    assert log_bars([999999999.9999999], width=5) == ["█████"]  # not a power of ten, but its logarithm is 9.0


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=9))
def test_bars_grow_with_values_and_none_is_empty(values: list[float]) -> None:
    bars = [bar for _, bar in sorted(zip(values, log_bars(values, width=20), strict=True))]
    assert all(1 <= len(bar) <= 20 for bar in bars)
    lengths = [len(bar) - (bar[-1] != "█") for bar in bars]
    assert lengths == sorted(lengths)
