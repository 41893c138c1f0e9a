import json
from collections.abc import Callable
from pathlib import Path

import pytest

from distill.apps.timing import fitting_rows, interleaved
from tests.helpers.commands import invoke


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float) -> Callable[[], object]:
        """Work that takes so long at the first call, at the second, and so on."""
        left = list(seconds)

        def run() -> None:
            self.order.append(name)
            self.now += left.pop(0)

        return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_median_of_the_rounds_without_the_warm_up_is_told(clock: Clock) -> None:
    work = {"a": clock.work("a", 900, 1, 5, 3), "b": clock.work("b", 0, 7, 7, 8)}
    assert interleaved(work, rounds=3, clock=clock) == {"a": 3, "b": 7}
    assert len(clock.order) == 8


def test_everybody_is_first_in_turn(clock: Clock) -> None:
    interleaved({name: clock.work(name, 1, 1, 1) for name in "abc"}, rounds=2, clock=clock)
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

    assert fitting_rows(make, 256, 10, clock) == expected


def test_the_first_call_only_warms_up(clock: Clock) -> None:
    first = [1000.0]

    def make(rows: int) -> Callable[[], object]:
        return clock.work(str(rows), first.pop() if first else 1)

    assert fitting_rows(make, 4, 10, clock) == (4, 10)


@pytest.mark.parametrize("run", ["opinion_run", "roles_run"])
def test_a_run_is_described_with_its_throughput(run: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(run)
    told = invoke("describe", folder, "--json")
    assert json.loads(told.stdout)["texts_per_second"] > 1
    assert "texts a second on this machine" in invoke("describe", folder).stdout


def test_a_recipe_and_a_student_without_weights_have_none(opinion_run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((opinion_run / "config.json").read_bytes())
    for described in ("mnli", tmp_path):
        assert "texts_per_second" not in json.loads(invoke("describe", described, "--json").stdout)
