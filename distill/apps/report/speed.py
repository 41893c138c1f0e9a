"""How many rows a second students read, on this machine."""

import time
from pathlib import Path

import torch

from distill.apps.bench.machine import processor
from pipeline.sets.reader import ExampleSet
from student.data import as_read, load_examples
from student.evaluate import student_logits
from student.model.model import Student, default_device

MOST_ROWS = 2_000
TRIES = 3


class SpeedTest:
    """The first rows of a set's first dev split, for students to read."""

    def __init__(self, logit_set: ExampleSet) -> None:
        self.split = min(logit_set.splits, key=lambda split: split == "train")
        self._examples = load_examples(logit_set, self.split, f"source_row < {MOST_ROWS} and variant = 0")
        self.num_rows = len(self._examples)

    def measure(self, run: Path) -> float:
        """Rows a second in large batches, in the best of a few tries after a warm-up."""
        student = Student.load(run).to(default_device())
        examples = as_read(self._examples, student.config)
        student_logits(student, examples)
        seconds = []
        for _ in range(TRIES):
            start = time.perf_counter()
            student_logits(student, examples)
            seconds.append(time.perf_counter() - start)
        return self.num_rows / min(seconds)


def machine() -> str:
    """The device that students run on here, in words."""
    if default_device().type == "cuda":
        return f"on a {torch.cuda.get_device_name()}"
    return f"on {processor()}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
