"""The arithmetic of a calibration, with runs whose time is what we say it is."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from teacher.dump.estimate import classifier_seconds, seconds_of


class Clock:
    """A clock that stands still but for what `spend` adds."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def shape(num_hidden_layers: int) -> Any:
    return SimpleNamespace(num_hidden_layers=num_hidden_layers)


@pytest.mark.parametrize(("layers", "expected"), [(1, 5.0), (2, 8.0), (12, 5.0 + 11 * 3)])
def test_further_layers_take_what_the_second_does(layers: int, expected: float, clock: Clock) -> None:
    seconds = seconds_of(shape(layers), lambda made: lambda: clock.spend(2 + 3 * made.num_hidden_layers))
    assert seconds == pytest.approx(expected)


def test_slow_first_runs_do_not_count(clock: Clock) -> None:
    calls = []

    def make(made: Any) -> Any:
        def run() -> None:
            calls.append(made.num_hidden_layers)
            clock.spend(100 if len(calls) <= 2 else 4 - made.num_hidden_layers)

        return run

    assert seconds_of(shape(12), make) == 3  # two layers were faster than one: noise
    assert set(calls) == {1, 2}


def test_the_shape_itself_stays_as_it_is(clock: Clock) -> None:
    given = shape(12)
    seconds_of(given, lambda made: lambda: clock.spend(1))
    assert given.num_hidden_layers == 12


def test_a_few_batches_stand_for_all(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    asked = []

    def spend(_: torch.nn.Module, __: Any, inputs: dict[str, torch.Tensor]) -> None:
        asked.append(tuple(inputs["attention_mask"].shape))
        assert inputs["attention_mask"].all()
        clock.spend(inputs["input_ids"].numel())

    made = AutoModelForSequenceClassification.from_config

    def hooked(given: Any) -> Any:
        model = made(given)
        model.register_forward_pre_hook(spend, with_kwargs=True)
        return model

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_config", hooked)
    seconds = classifier_seconds(config, [4] * 1000, 40, torch.device("cpu"), "fp32")
    assert seconds == 4 * 1000  # a second a token
    assert set(asked) == {(10, 4)}
    assert len(asked) < 100
