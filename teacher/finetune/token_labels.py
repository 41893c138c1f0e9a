"""Fine-tunes a teacher of word labels on the gold label of each word, at the word's first token.

Shapes: B sentences of a batch, L tokens, T tokens of all sentences, C logits.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from torch.nn import functional

from pipeline.arrays import Ragged
from pipeline.errors import DataError
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import require_known_ids
from pipeline.training.batches import EpochBatches
from pipeline.training.joint import BatchedTask
from pipeline.training.run_record import Metrics
from teacher.finetune.common import autocast, save_teacher
from teacher.finetune.examples import Forward
from teacher.finetune_settings import StepFlags
from teacher.models.batches import collate, tokens_per_batch
from teacher.models.classifier import Teacher
from teacher.models.teacher_logits import framed, labelled_words, pieces_of


class TokenLabelTask(BatchedTask):
    """A classifier of words with its sentences for training and scores.

    Args:
        steps: the settings of a step.
        task: the task, with its metrics.
        teacher: the teacher, which is trained in place.
        rows: the rows of ``train`` and of dev splits.
        accelerator: this process and the others.
        forward: returns logits_BLC of the classifier for its inputs as keywords, in all processes.

    Raises:
        DataError: if no training row has gold and a token, or the teacher's tokenizer lacks the words.
    """

    def __init__(
        self,
        steps: StepFlags,
        task: Task,
        teacher: Teacher,
        rows: dict[str, pa.Table],
        accelerator: Accelerator,
        forward: Forward,
    ) -> None:
        self.model, self._teacher, self._task, self._forward = teacher.model, teacher, task, forward
        self._max_seq_length, self._accelerator = steps.max_seq_length, accelerator
        self._dev_rows = {name: part for name, part in rows.items() if name != "train"}
        train = rows["train"].filter(rows["train"].column("label").is_valid())
        pieces = pieces_of(teacher, train, steps.max_seq_length)
        no_logits_TC = np.empty((len(pieces.ids.flat), 0), dtype=np.float32)
        labelled_words = LabelledWords.of(
            task.labels, train.column("sentence1"), train.column("label"), pieces, no_logits_TC
        )
        # The mean loss of a batch without tokens would be NaN.
        self._ids = pieces.ids.not_empty
        self._gold = Ragged(labelled_words.gold_T, self._ids.offsets)
        if not len(self._ids):
            raise DataError(
                f"task {task.name!r}: no row of the train split has gold and a token, so there is nothing to "
                "fine-tune on"
            )
        require_known_ids(teacher.tokenizer, self._ids, f"model {teacher.name}")
        processes = (accelerator.num_processes, accelerator.process_index)
        self.batches = EpochBatches(self._ids.lengths, steps.per_device_train_batch_size, steps.seed, *processes)

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Returns the mean loss of the words of a batch, a scalar."""
        device, first = self._accelerator.device, len(self._teacher.tokens.frame[0])
        inputs = collate(self._teacher, framed(self._teacher, self._ids.take(batch)))
        # Special tokens and padding keep NO_LABEL, which the loss ignores.
        gold_BL = torch.full(inputs["input_ids"].shape, NO_LABEL)
        gold = self._gold.padded(batch, NO_LABEL)
        gold_BL[:, first : first + gold.shape[1]] = torch.from_numpy(gold)
        with autocast(device):
            logits_BLC = self._forward(**{key: value.to(device) for key, value in inputs.items()}).float()
        return functional.cross_entropy(logits_BLC.flatten(0, 1), gold_BL.flatten().to(device), ignore_index=NO_LABEL)

    def evaluate(self) -> Metrics:
        """Returns the task's metrics on each dev split in fp32, like those of a dump.

        Every process computes all of them.
        """
        return {name: self._score(name, rows) for name, rows in self._dev_rows.items()}

    def save(self, folder: Path) -> None:
        """Writes the teacher."""
        save_teacher(self._teacher.model, self._teacher.name, self._teacher.revision, folder)

    def _score(self, split: str, rows: pa.Table) -> dict[str, float]:
        max_tokens = tokens_per_batch(self._accelerator.device)
        with torch.no_grad():
            predicted = labelled_words(self._teacher, rows, self._max_seq_length, split, max_tokens)
        return word_scores(self._task.metrics, predicted.tallies(predicted.teacher_TC))
