import time
from collections.abc import Callable

import pytest

from distill.apps.bench.readers import Reader, made_up_tokenizer, make_sentences
from distill.apps.bench.timing import ComputePlace, fitting_rows, interleaved, num_calls, speeds


class Clock:
    """A clock that work moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.order: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, name: str, *seconds: float) -> Callable[[], object]:
        """Work that takes so long at the first call, at the second, and so on."""
        left = list(seconds)

        def run() -> None:
            self.order.append(name)
            self.now += left.pop(0)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_median_of_the_rounds_without_the_warm_up_is_told(clock: Clock) -> None:
    work = {"a": clock.work("a", 900, 1, 5, 3), "b": clock.work("b", 0, 7, 7, 8)}
    advanced: list[int] = []
    assert interleaved(work, rounds=3, advance=lambda: advanced.append(1)) == {"a": 3, "b": 7}
    assert len(advanced) == 8


def test_everybody_is_first_in_turn(clock: Clock) -> None:
    interleaved({name: clock.work(name, 1, 1, 1) for name in "abc"}, rounds=2)
    assert "".join(clock.order) == "abcbcacab"


@pytest.mark.parametrize(
    ("per_row", "per_call", "expected"),
    [
        (1, 0, (8, 1)),  # 8 rows take 8 s: more than half of ten
        (100, 0, (1, 1)),  # a single row takes longer than a turn
        (0, 0.5, (256, 20)),  # never too long
        (0.01, 0, (256, 3)),
    ],
)
def test_rows_and_calls_fill_a_turn_of_ten_seconds(
    clock: Clock, per_row: float, per_call: float, expected: tuple[int, int]
) -> None:
    def make(rows: int) -> Callable[[], object]:
        return clock.work(str(rows), per_row * rows + per_call)

    assert fitting_rows(make, 256, 10) == expected


def test_the_first_call_only_warms_up(clock: Clock) -> None:
    first = [1000.0]

    def make(rows: int) -> Callable[[], object]:
        return clock.work(str(rows), first.pop() if first else 1)

    assert fitting_rows(make, 4, 10) == (4, 10)


def test_another_clock_may_tell_the_seconds(clock: Clock) -> None:
    work = {"a": clock.work("a", 9, 1, 1)}
    assert interleaved(work, rounds=2, clock=lambda: 10 * clock.now) == {"a": 10}
    make = {rows: clock.work("b", *[rows] * 9) for rows in (1, 2, 4, 8)}.__getitem__
    assert fitting_rows(make, 8, 25, clock=lambda: 10 * clock.now) == (2, 1)


def test_the_bar_counts_every_call() -> None:
    sentences = make_sentences(made_up_tokenizer(30), 30, 0, is_pair=False)
    of_texts = Reader("texts", "fp32", 1, None, lambda first, second: len(first))
    of_both = Reader("both", "fp32", 1, lambda ids: lambda: len(ids), lambda first, second: len(first))
    calls: list[None] = []
    found = speeds([of_texts, of_both], sentences, ComputePlace("cpu", 1), 0.001, lambda: calls.append(None))
    assert len(calls) == num_calls([of_texts, of_both])
    assert [(speed.measure, speed.model) for speed in found if speed.tokens_per_second is None] == [
        ("paper", "both"),
        ("realistic", "both"),
    ]
