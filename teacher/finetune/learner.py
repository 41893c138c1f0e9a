"""A step of a classifier, or of one of several that share an encoder, against the gold of its task.

Shapes: B batch, C logits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn import functional

from pipeline.errors import DataError
from pipeline.sources import sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import Tokenized
from pipeline.training import loop
from pipeline.training.run_record import Metrics
from pipeline.training.steps import EpochBatches, MixedBatches
from teacher.config import FinetuneTask
from teacher.finetune.common import adamw, autocast, take_step
from teacher.finetune.rows import Split
from teacher.models.batches import collate, teacher_logits, tokens_per_batch
from teacher.models.classifier import Teacher

Ask = Callable[..., torch.Tensor]


class Lesson:
    """A classifier of a task and the rows that it is trained and scored on.

    Args:
        config: the settings.
        task: whose metrics score it.
        teacher: is trained in place.
        splits: ``train``, and dev splits.
        accelerator: this process and the others.

    Attributes:
        teacher: the classifier.
        batches: of the training rows with gold.

    Raises:
        DataError: if no training row has gold.
    """

    def __init__(
        self, config: FinetuneTask, task: Task, teacher: Teacher, splits: dict[str, Split], accelerator: Accelerator
    ) -> None:
        self.teacher, self._config, self._task, self._accelerator = teacher, config, task, accelerator
        self._train = splits["train"]
        self._dev = {name: split for name, split in splits.items() if name != "train"}
        self._gold_N, self._rows = self._train.gold(teacher)
        if not len(self._rows):
            raise DataError(f"task {task.name!r}: the train split has no row with gold, nothing to fine-tune on")
        lengths, processes = self._train.lengths_N[self._rows], (accelerator.num_processes, accelerator.process_index)
        self.batches = EpochBatches(lengths, config.per_device_train_batch_size, config.seed, *processes)

    def loss(self, batch: Sequence[int], ask: Ask) -> torch.Tensor:
        """The mean loss of a batch, a scalar; ``ask`` gives logits_BC of the classifier for its inputs as keywords."""
        device, rows = self._accelerator.device, self._rows[batch]
        inputs = collate(self.teacher, self._inputs(self._train, rows.tolist()))
        gold = torch.as_tensor(self._gold_N[rows], device=device)
        with autocast(device):
            logits_BC = ask(**{key: value.to(device) for key, value in inputs.items()}).float()
        return classifier_loss(self.teacher.target, logits_BC, gold)

    def scores(self) -> Metrics:
        """The task's metrics on each dev split."""
        return {name: self._score(split) for name, split in self._dev.items()}

    def _score(self, split: Split) -> dict[str, float]:
        """Metrics on a dev split, in fp32 as a dump has them; each process takes every n-th row."""
        accelerator = self._accelerator
        my_rows = range(accelerator.process_index, split.rows.num_rows, accelerator.num_processes)
        with torch.no_grad():
            max_tokens = tokens_per_batch(accelerator.device)
            logits = teacher_logits(self.teacher, self._inputs(split, my_rows), max_tokens)
        gathered = dict(gather_object(list(zip(my_rows, logits.tolist(), strict=True))))
        logits_NC = np.array([gathered[row] for row in range(split.rows.num_rows)], dtype=np.float32)
        return score_logits(self._task.metrics, self.teacher.target, logits_NC, split.label_N, split.score_N)

    def _inputs(self, split: Split, numbers: Sequence[int]) -> list[Tokenized]:
        """The rows of these numbers in tokens."""
        rows = split.rows.take(pa.array(numbers, pa.int64()))
        return self.teacher.reader.tokenize(*sentences(rows), self._config.max_seq_length)


class Classifiers(nn.Module):
    """Classifiers that may share an encoder, as one module; a forward pass is one of them, by its number."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, number: int, **inputs: torch.Tensor) -> torch.Tensor:
        """Returns logits_BC of the classifier of this number."""
        return self.models[number](**inputs).logits  # type: ignore[no-any-return]


class ClassifierLearner(loop.Learner):
    """A classifier, or several that share an encoder; a step is a batch of one of them, the others' heads stay.

    Args:
        config: the settings.
        lessons: what each learns.
        accelerator: this process and the others.
        score: tells their metrics.
        keep: writes their weights.
    """

    def __init__(
        self,
        config: FinetuneTask,
        lessons: Sequence[Lesson],
        accelerator: Accelerator,
        score: Callable[[], Metrics],
        keep: Callable[[], None],
    ) -> None:
        self._config, self._lessons, self._accelerator = config, lessons, accelerator
        self._score, self._keep = score, keep
        self.model = Classifiers([lesson.teacher.model for lesson in lessons])
        optimizer = adamw(self.model, config.learning_rate, config.weight_decay)
        self._wrapped, self.optimizer = accelerator.prepare(self.model, optimizer)
        self._batches = MixedBatches([lesson.batches for lesson in lessons], config.seed)

    def schedule(self) -> loop.Schedule:
        """An entry for each epoch, and checkpoints within it."""
        steps = self._batches.steps_per_epoch
        return loop.Schedule(
            total_steps=steps * self._config.num_train_epochs,
            entry_steps=steps,
            unit="epoch",
            seed=self._config.seed,
            warmup_steps=self._config.warmup_steps,
            save_steps=self._config.save_steps,
        )

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns this process's mean loss and number of rows."""
        number, rows = self._batches.at(step)
        loss = self._lessons[number].loss(rows, lambda **inputs: self._wrapped(number, **inputs))
        take_step(self._accelerator, self._wrapped, self.optimizer, loss, self._config.max_grad_norm)
        return loss, len(rows)

    def evaluate(self) -> Metrics:
        """The metrics on each dev split."""
        return self._score()

    def keep(self) -> None:
        """Writes the weights."""
        self._keep()


def classifier_loss(target: Target, logits_BC: torch.Tensor, gold_B: torch.Tensor) -> torch.Tensor:
    """The mean loss against gold that a target asks for, a scalar; of labels apart also the mean over labels."""
    if target.kind == "score":
        return functional.mse_loss(logits_BC[:, 0], gold_B)
    if target.kind == "labels":
        return functional.binary_cross_entropy_with_logits(logits_BC, gold_B.float())
    return functional.cross_entropy(logits_BC, gold_B)
