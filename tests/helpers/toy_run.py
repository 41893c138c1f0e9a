"""A training of a moment with all that the loop has to see to, and one that is killed wherever it writes."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from pipeline.record_file import Record
from pipeline.training.batches import EpochBatches
from pipeline.training.best_epoch import best_of
from pipeline.training.checkpoint import write_tensors
from pipeline.training.loop import TrainOptimizer, TrainTask, fit, seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import Metrics
from pipeline.training.schedule import Schedule

EPOCHS = Schedule(total_steps=30, entry_steps=6, unit="epoch", seed=3, warmup_steps=4, save_steps=4, patience=2)
STEPS = Schedule(total_steps=17, entry_steps=5, unit="step", seed=3, save_best=False)
WRITES = {"os.rename", "os.remove", "os.mkdir"}  # as Python's audit hooks name them


class StatefulBatches(EpochBatches):
    """Batches with a state that only a checkpoint has."""

    def at(self, step: int) -> list[int]:
        self.state = (self.state or 0) + step
        return super().at(step)


class ToyTask(TrainTask[list[int]]):
    """A net with dropout on 24 rows; how good it is goes up and down."""

    def __init__(self, learning_rate: float) -> None:
        seed_step(3, 0)
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.model = torch.nn.Sequential(self.first, torch.nn.Dropout(0.3), self.second)
        groups: list[dict[str, Any]] = [
            {"params": self.first.parameters()},
            {"params": self.second.parameters(), "lr": 2 * learning_rate},
        ]
        self.optimizer = TrainOptimizer(torch.optim.AdamW(groups, lr=learning_rate))
        self.rows_N3 = torch.randn(24, 3)
        self.batches = StatefulBatches([1] * 24, 4, seed=3)

    def loss(self, batch: list[int]) -> torch.Tensor:
        x_B3 = self.rows_N3[batch]
        error_B: torch.Tensor = self.model(x_B3)[:, 0] - x_B3.sum(dim=1) - self.batches.state % 5
        return error_B.square().mean()

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        return {"validation": {"score": float(torch.sin(20 * self.model(self.rows_N3).mean()))}}

    def save(self, folder: Path) -> None:
        write_tensors(folder / "weights.safetensors", self.model.state_dict())


def toy_run(folder: Path, schedule: Schedule = EPOCHS, learning_rate: float = 0.05) -> Record:
    """Trains the toy, or goes on with it."""
    run = Run(folder, {"learning_rate": learning_rate, "seed": 3}, "distill toy")
    finished = run.start()
    if finished is not None:
        return finished
    task = ToyTask(learning_rate)
    history = fit(run, task, task.optimizer, schedule)
    return run.finish({"history": history, "best": best_of(history)})


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def killed_everywhere(root: Path, schedule: Schedule) -> int:
    """Kills the training before each of its writes in turn, repeats it, and compares; returns how often."""
    root.mkdir()
    writes = _in_child(root / "whole", schedule)
    for number in range(1, writes + 1):
        folder = root / str(number)
        _in_child(folder, schedule, kill_at=number)
        toy_run(folder, schedule)
        assert contents(folder) == contents(root / "whole"), f"killed before write {number}"
    return writes


def _in_child(folder: Path, schedule: Schedule, kill_at: int | None = None) -> int:
    """Trains in a fork that is killed outright before a write; returns how many writes there were without that."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        writes = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal writes
            if event in WRITES and str(arguments[0]).startswith(str(folder)):
                writes += 1
                if writes == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            toy_run(folder, schedule)
            os.write(writer, str(writes).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    os.close(writer)
    assert kill_at is None or os.WTERMSIG(status) == signal.SIGKILL, f"not killed before write {kill_at}"
    with os.fdopen(reader) as stream:
        return int(stream.read() or 0)


def print_kills(root: Path) -> None:
    """Kills trainings of epochs and of steps everywhere and prints how often. It needs a process without threads."""
    for name, schedule in {"epochs": EPOCHS, "steps": STEPS}.items():
        print(killed_everywhere(root / name, schedule), flush=True)  # noqa: T201
