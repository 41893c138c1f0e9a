"""What every pretraining does beside its loss: new students, steps of AdamW over tables and head, writing, catching up.

Shapes: T tokens of a batch, N sequences, S = N + 1 starts.
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from torch import nn

from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.training.loop import Learner
from pipeline.training.steps import seed_step
from student.config import PretrainConfig
from student.model.products import GradientTaker
from student.pretrain.student import PretrainedStudent
from student.train.optimizer import RowAdam
from student.train.token_vectors import start_from_teacher
from student.train.used_rows import neutralise_unmoved, with_used_rows

S = TypeVar("S", bound=PretrainedStudent[Any])
BETAS, EPS = (0.9, 0.98), 1e-6  # of the published code


class EmbeddingLearner(Learner, Generic[S]):
    """A student that is pretrained, and what moves it.

    Embeddings do not decay: a matrix near the identity would decay to nothing, not to doing nothing.

    Args:
        config: the settings.
        student: is trained in place; on the device of ``state``.
        head: the part of it that is not tables.
        total_steps: steps of the whole run.
        folder: where the student is written to.
        state: this process and the others.
        vectors: what the student's vectors have started from, if not from noise.
    """

    def __init__(
        self,
        config: PretrainConfig,
        student: S,
        head: nn.Module,
        total_steps: int,
        folder: Path,
        state: PartialState,
        vectors: VocabularyVectors | None = None,
    ) -> None:
        self.model: S = student
        tables = (table.weight for table in student.encoder.tables())
        rates = (config.learning_rate, config.weight_decay)
        pad_id = student.config.pad_id
        self.optimizer = RowAdam(tables, head.parameters(), *rates, padding_idx=pad_id, betas=BETAS, eps=EPS)
        self._config, self._state = config, state
        self._total_steps, self._steps_taken = total_steps, 0
        self._folder, self._vectors = folder, vectors

    @abstractmethod
    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss over all processes, and this one's number of rows."""

    def _rows_of(self, ids_T: torch.Tensor) -> GradientTaker | None:
        """Who takes the gradients of the rows of a batch; None if those of whole tables are made.

        Several processes add up gradients of the same shape: those of whole tables.
        """
        return self.optimizer.use(ids_T) if self.optimizer.by_rows and self._state.num_processes == 1 else None

    def _move(self, step: int, loss: torch.Tensor, reduction: str) -> torch.Tensor:
        """Takes a step by the gradients, and a loss, that all processes share by ``sum`` or ``mean``; returns this."""
        if self._state.num_processes > 1:
            for parameter in self.model.parameters():
                parameter.grad = reduce(parameter.grad, reduction=reduction)
            loss = reduce(loss.detach(), reduction=reduction)
        self.optimizer.clip_gradients(self._config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._steps_taken = step + 1
        return loss

    def keep(self) -> None:
        """Writes the student."""
        self.model.config = with_used_rows(self.model.config, self.model.encoder)
        self.model.save(self._folder)

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them.

        After the last step the rows that no step has moved are made neutral: where they are is noise.
        """
        self.optimizer.catch_up()
        if self._steps_taken == self._total_steps:
            start = new_student(self._config, type(self.model), self.model.config, self._vectors)
            neutralise_unmoved(self.model.encoder, start.encoder, self._vectors)


def new_student(
    config: PretrainConfig, kind: type[S], student_config: Any, vectors: VocabularyVectors | None = None
) -> S:
    """The student before its first step, on the CPU; its vectors start from a teacher's, if any are given."""
    seed_step(config.seed, 0)
    student = kind(student_config)
    if vectors is not None:
        start_from_teacher(student.encoder, vectors)
    return student
