"""What is trained on a GPU: it has to learn what a CPU learns, and twice the same."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teacher.tiny import create_tiny_bert
from tests.gpu.checks import DUMP_SECONDS, Check, Measured, environment_on
from tests.helpers.commands import distill
from tests.helpers.toy_tasks import write_toy_tasks

# An accuracy on 500 rows. The devices draw other numbers for dropout, so that the weights differ.
WORSE = 0.05
TEACHER = ("--learning-rate", "0.001", "--per-device-train-batch-size", "32", "--max-seq-length", "32")


class Trainings:
    """A teacher that is fine-tuned, its set, and students of it, on a CPU and on the device.

    Args:
        folder: an empty folder.
        device: ``cuda`` or ``cpu``.
        rows: of training.
        epochs: of both.
    """

    def __init__(self, folder: Path, device: str, rows: int, epochs: int) -> None:
        self.folder, self.device, self.epochs = folder, device, str(epochs)
        self.task = ("--manifest", str(folder / "opinion.yaml"), "--data", str(folder / "data"))
        sentences = write_toy_tasks(folder, rows, 500)
        create_tiny_bert(folder / "bert", sentences)

    def run(self, device: str, *arguments: str) -> Any:
        """Runs a command of `distill`; returns what it printed as JSON."""
        if self.device == "cpu":  # The checks themselves are tried. Forked commands start at once.
            forked = distill(*arguments, "--json", environment=environment_on(device))
            printed, error = forked.communicate(timeout=DUMP_SECONDS)
            if forked.returncode:
                raise RuntimeError(f"{arguments[0]} failed: {error[-2000:]}")
            return json.loads(printed)
        command = [sys.executable, "-m", "distill", *arguments, "--json"]
        done = subprocess.run(command, env=environment_on(device), capture_output=True, text=True, timeout=DUMP_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    def teacher(self, device: str) -> float:
        """Fine-tunes a teacher; returns its accuracy."""
        output = self.folder / f"teacher-{device}"
        start = ("--model-name-or-path", str(self.folder / "bert"), "--num-train-epochs", self.epochs)
        return accuracy(self.run(device, "finetune-teacher", *self.task, *start, *TEACHER, "--output-dir", str(output)))

    def student(self, device: str, name: str) -> float:
        """Trains a student from logits of the CPU's teacher; returns its accuracy."""
        store = self.folder / "store"
        if not (store / "opinion" / "distill.json").exists():
            teacher = ("--model-name-or-path", str(self.folder / "teacher-cpu"), "--max-seq-length", "32")
            self.teacher("cpu")
            self.run("cpu", "teacher-dump", *self.task, *teacher, "--store", str(store), "--name", "opinion")
        wanted = ("--set", "opinion", "--store", str(store), "--num-train-epochs", self.epochs)
        return accuracy(self.run(device, "train-student", *wanted, "--output-dir", str(self.folder / name)))

    def teachers_agree(self) -> Measured:
        """Compares the accuracies of teachers that were fine-tuned on both."""
        return Measured(self.teacher("cpu") - self.teacher(self.device), WORSE, "accuracy below the CPU's")

    def students_agree(self) -> Measured:
        """Compares the accuracies of students that were trained on both."""
        on_cpu = self.student("cpu", "student-cpu")
        return Measured(on_cpu - self.student(self.device, "student-1"), WORSE, "accuracy below the CPU's")

    def repeats(self) -> Measured:
        """Trains a student on the device twice, with the same seed."""
        for number in (1, 2):  # the first is there already if it was compared
            self.student(self.device, f"student-{number}")
        weights = [self.folder / f"student-{number}" / "model.safetensors" for number in (1, 2)]
        return Measured(len({hashlib.sha256(path.read_bytes()).digest() for path in weights}) - 1, 0, "other weights")


def accuracy(printed: Any) -> float:
    """The accuracy of the last epoch on the dev rows."""
    scores = printed["result"]["history"][-1]["metrics"]["validation"]
    return float(scores["accuracy"])


def training_checks(folder: Path, device: str, is_short: bool) -> Iterator[tuple[str, Check]]:
    """Yields the checks by name. See `tests.gpu.checks.checks` for the arguments."""
    trainings = Trainings(folder / "trainings", device, *((64, 1) if is_short else (2000, 3)))
    yield f"finetune-teacher on {device} learns as on the CPU", trainings.teachers_agree
    yield f"train-student on {device} learns as on the CPU", trainings.students_agree
    yield f"train-student on {device}: the seed determines the weights", trainings.repeats
