from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from pipeline.errors import ConfigError
from pipeline.training.loop import fit
from pipeline.training.run import CHECKPOINT, Progress, Run
from pipeline.training.schedule import Schedule
from tests.helpers.forked import Forked
from tests.helpers.toy_run import EPOCHS, STEPS, ToyTask, contents, print_kills, toy_run

WEIGHTS = "weights.safetensors"


@pytest.mark.slow
def test_killed_at_any_write_and_repeated_gives_the_same_bytes(tmp_path: Path) -> None:
    process = Forked(partial(print_kills, tmp_path))
    out, error = process.communicate()
    assert process.returncode == 0, error
    epochs, steps = map(int, out.split())
    assert epochs > 30  # a record, 8 checkpoints, kept weights, a record: renames, and removals after them
    assert steps > 10


def test_the_best_entry_decides_what_is_kept_and_when_to_stop(tmp_path: Path) -> None:
    result = toy_run(tmp_path, EPOCHS)["result"]
    scores = [entry["metrics"]["validation"]["score"] for entry in result["history"]]
    assert [entry["epoch"] for entry in result["history"]] == [1, 2, 3, 4]
    assert scores.index(max(scores)) == 1  # and 2 epochs without a better one are patience lost
    assert result["best"] == result["history"][1]
    task = ToyTask(0.05)
    task.model.load_state_dict(load_file(tmp_path / WEIGHTS))
    task.model.eval()
    assert task.evaluate() == result["best"]["metrics"]


@pytest.mark.parametrize("save_steps", [None, 1, 7])
def test_checkpoints_between_entries_change_nothing(tmp_path: Path, save_steps: int | None) -> None:
    toy_run(tmp_path / "a", EPOCHS)
    toy_run(tmp_path / "b", replace(EPOCHS, save_steps=save_steps))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


class Level(ToyTask):
    """As good after every epoch, and of the loss 1 for 4 rows, then 2, then 3 …"""

    steps = 0

    def loss(self, batch: list[int]) -> torch.Tensor:
        self.steps += 1
        return torch.tensor(float(self.steps), requires_grad=True)

    def evaluate(self) -> dict[str, dict[str, float]]:
        self.first.bias.data += 1
        return {"validation": {"score": 0.5}}


def test_of_equally_good_entries_the_first_is_kept(tmp_path: Path) -> None:
    task = Level(0.1)
    bias = task.first.bias.detach().clone()
    run = Run(tmp_path, {}, "")
    run.start()
    history = fit(run, task, task.optimizer, replace(EPOCHS, patience=None))
    assert [entry["loss"] for entry in history] == [3.5, 9.5, 15.5, 21.5, 27.5]
    assert torch.equal(load_file(tmp_path / WEIGHTS)["0.bias"], bias + 1)


def test_without_a_best_the_last_weights_are_kept(tmp_path: Path) -> None:
    result = toy_run(tmp_path / "a", STEPS)["result"]
    assert [entry["step"] for entry in result["history"]] == [5, 10, 15, 17]
    task = ToyTask(0.05)
    task.model.load_state_dict(load_file(tmp_path / "a" / WEIGHTS))
    task.model.eval()
    assert task.evaluate() == result["history"][-1]["metrics"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [0, 13])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_best(tmp_path: Path, bad: float, step: int) -> None:
    class Diverging(ToyTask):
        steps = 0

        def loss(self, batch: list[int]) -> torch.Tensor:
            loss, at = super().loss(batch), self.steps
            self.steps += 1
            return loss + bad if at == step else loss

    folder = tmp_path / "run"
    run = Run(folder, {}, "")
    run.start()
    task = Diverging(0.05)
    with pytest.raises(ConfigError) as caught:
        fit(run, task, task.optimizer, EPOCHS)
    message = str(caught.value)
    if step == 0:
        assert all(part in message for part in ("step 4", str(bad), "--learning-rate"))
        assert list(contents(folder)) == ["run.json"]
    else:
        assert all(part in message for part in ("step 16", str(bad), "--learning-rate", "--output-dir", str(folder)))
        toy_run(tmp_path / "whole")
        assert contents(tmp_path / "whole")[WEIGHTS] == contents(folder)[WEIGHTS]
        sound = ToyTask(0.05)
        assert run.resume(sound.model, sound.optimizer.inner).step == 12


def test_each_group_has_its_own_rate_on_one_schedule(tmp_path: Path) -> None:
    rates = []

    class Watched(ToyTask):
        def loss(self, batch: list[int]) -> torch.Tensor:
            rates.append([group["lr"] for group in self.optimizer.inner.param_groups])
            return super().loss(batch)

    run = Run(tmp_path, {}, "")
    run.start()
    task, schedule = Watched(0.5), Schedule(total_steps=6, entry_steps=6, unit="step", seed=0, warmup_steps=2)
    fit(run, task, task.optimizer, schedule)
    assert rates == [[0, 0], [0.25, 0.5], [0.5, 1], [0.375, 0.75], [0.25, 0.5], [0.125, 0.25]]


@given(total=st.integers(1, 60), entry=st.integers(1, 70), save=st.none() | st.integers(1, 70))
def test_stops_are_the_multiples_and_the_end(total: int, entry: int, save: int | None) -> None:
    schedule = Schedule(total_steps=total, entry_steps=entry, unit="step", seed=0, save_steps=save)
    stops, progress = [], Progress()
    while not schedule.is_over(progress):
        progress.step = schedule.next_stop(progress.step)
        stops.append(progress.step)
    expected = {*range(entry, total, entry), *range(save or entry, total, save or entry), total}
    assert stops == sorted(expected)
    assert [stop for stop in stops if schedule.is_entry(stop)] == sorted({*range(entry, total, entry), total})


def test_no_checkpoint_outlives_a_finished_run(tmp_path: Path) -> None:
    first = toy_run(tmp_path)
    (tmp_path / CHECKPOINT).touch()
    assert toy_run(tmp_path) == first
    assert sorted(contents(tmp_path)) == ["metrics.jsonl", "run.json", WEIGHTS]
