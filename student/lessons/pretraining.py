"""The common parts of pretraining students: the task, its batches from a set that is too large for memory, the card."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sized
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from huggingface_hub import ModelCardData

from pipeline.arrays import Ints
from pipeline.record_file import Record
from pipeline.sets.card import hub_metadata
from pipeline.sets.open import Group, GroupedSet
from pipeline.sets.record import SetRecord
from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.tasks.task import TRAIN
from pipeline.training.batches import batch_of, num_rounds, shuffled_batches
from pipeline.training.loop import B, TrainTask, seed_step
from student.initial_weights.vectors import start_from_vectors
from student.model.card import embedding_summary, filled, tags_of, used_summary
from student.model.pretrained import PretrainedStudent
from student.pretrain_settings import PretrainSettings
from student.row_adam import RowAdam, RowOptimizer
from student.vocabulary_pruning import neutralise_unmoved, with_used_rows

if TYPE_CHECKING:
    from accelerate import PartialState

BETAS, EPS = (0.9, 0.98), 1e-6  # the value in the published code
POOL_ROWS, POOL_GROUPS = 16384, 8
SCORED_ROWS, SCORED_BATCH = 4096, 256

S = TypeVar("S", bound=PretrainedStudent[Any])


class PretrainTask(TrainTask[B], Generic[B, S]):
    """The pretraining of a student on a set that is too large for memory.

    Args:
        settings: the settings, of which the flags for other kinds of sets are refused.
        opened: the opened set.
        student_config: the architecture.
        batches: the batches of the set's train split.
        state: this process and the others.
        vectors: the initial vectors of the student, if they do not start from noise.

    Attributes:
        of_set: the facts about the set that decide the weights.
        optimizer: made by `start`, like the ``model``.
    """

    student_type: ClassVar[type[PretrainedStudent[Any]]]
    model: S
    optimizer: RowOptimizer
    of_set: dict[str, Any]

    def __init__(
        self,
        settings: PretrainSettings,
        opened: GroupedSet,
        student_config: Any,
        batches: "GroupBatches[B]",
        state: "PartialState",
        vectors: VocabularyVectors | None = None,
    ) -> None:
        self.opened, self.batches = opened, batches
        self.settings, self._student_config = settings, student_config
        self._state, self._vectors = state, vectors

    def decided(self) -> dict[str, Any]:
        """Returns the settings that decide the weights, without the paths of the set and the run."""
        record = self.opened.record
        # `bidirectional` is also recorded for cbow.
        decided = {"bidirectional": True} | self.settings.decided(record.kind)
        return decided | {"logit_set_fingerprint": record.fingerprint} | self.of_set

    def start(self) -> None:
        """Makes the student and its optimizer.

        Embeddings do not decay: a matrix near the identity would decay to nothing, not to doing nothing.
        """
        self.model = self._new_student().to(self._state.device)
        tables = [table.weight for table in self.model.encoder.tables()]
        rows = {id(table) for table in tables}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in rows]
        rates = (self.settings.learning_rate, self.settings.weight_decay)
        pad_id = self.model.config.pad_id
        adam = RowAdam(tables, others, *rates, padding_idx=pad_id, betas=BETAS, eps=EPS)
        self.optimizer = SharedRowOptimizer(adam, self.settings.max_grad_norm, self._state.num_processes)

    def finish(self) -> None:
        """Makes the rows neutral that no step has changed, because they contain noise."""
        neutralise_unmoved(self.model.encoder, self._new_student().encoder, self._vectors)

    def save(self, folder: Path) -> None:
        self.model.config = with_used_rows(self.model.config, self.model.encoder)
        self.model.save(folder)

    def _new_student(self) -> Any:
        return new_student(self.student_type, self._student_config, self.settings.seed, self._vectors)

    @abstractmethod
    def card(self, record: Record) -> str:
        """Returns the README of the student. ``record`` is the record of its run."""


def new_student(student_type: type[S], student_config: Any, seed: int, vectors: VocabularyVectors | None = None) -> S:
    """Returns the student before its first step, on the CPU. Its vectors start from a teacher's, if any are given."""
    seed_step(seed, 0)
    student = student_type(student_config)
    if vectors is not None:
        start_from_vectors(student.encoder, vectors)
    return student


class SharedRowOptimizer(RowOptimizer):
    """Moves rows and other parameters by the mean gradients of all processes."""

    def __init__(self, inner: RowAdam, max_grad_norm: float, num_processes: int) -> None:
        super().__init__(inner, max_grad_norm)
        self._num_processes = num_processes

    @property
    def by_rows(self) -> bool:
        """Whether rows have separate gradients. Several processes can only add up gradients of the same shape."""
        return super().by_rows and self._num_processes == 1

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Computes the mean gradients of all processes. Returns their mean loss without its graph."""
        loss = super().backward(loss)
        if self._num_processes == 1:
            return loss
        from accelerate.utils import reduce

        for group in self.inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = reduce(parameter.grad, reduction="mean")
        return reduce(loss, reduction="mean")  # type: ignore[no-any-return]


B_co = TypeVar("B_co", bound=Sized, covariant=True)


class RowPool(Protocol[B_co]):
    """Row groups in memory."""

    @property
    def lengths(self) -> Ints:
        """Tokens per row."""

    def batch(self, rows: list[int]) -> B_co:
        """Returns the batch of some of the rows."""


class GroupBatches(Generic[B]):
    """Batches of a set that is too large for memory, in random order: a pool of its row groups at a time.

    Args:
        grouped: the set, of which the train split is used.
        read_pool: reads row groups, whose files have been checked, into memory.
        batch_size: rows per batch.
        seed: the seed of the order.
        num_processes: the number of processes that share each step, with a batch each.
        rank: number of this process.
    """

    state: Any = None

    def __init__(
        self,
        grouped: GroupedSet,
        read_pool: Callable[[list[Group]], RowPool[B]],
        batch_size: int,
        seed: int,
        num_processes: int = 1,
        rank: int = 0,
    ) -> None:
        self._set, self._read_pool, self._batch_size, self._seed = grouped, read_pool, batch_size, seed
        self._processes, self._rank = num_processes, rank
        self._groups = grouped.groups(TRAIN)
        self._checked: set[str] = set()
        self._first = self._last = 0  # the steps in memory
        self.num_rows = sum(rows for _, rows in self._groups)

    def at(self, step: int) -> B:
        """Returns the batch of this process at a step, counted from the first epoch on."""
        if not self._first <= step < self._last:
            self._move_to(step)
        return self._pool.batch(batch_of(self._batches, step - self._first, self._processes, self._rank))

    def _move_to(self, step: int) -> None:
        """Reads the pool of a step."""
        self._first = 0
        for epoch in itertools.count():
            for number, (groups, rows) in enumerate(self._pools(epoch)):
                self._last = self._first + self._steps(rows)
                if step < self._last:
                    new = {shard.path: shard for shard, _ in groups if shard.path not in self._checked}
                    self._set.check_shards(list(new.values()))
                    self._checked |= new.keys()
                    self._pool = self._read_pool(groups)
                    lengths = self._pool.lengths.tolist()
                    key = epoch * 2**20 + number
                    self._batches = shuffled_batches(lengths, self._batch_size, self._seed, key)
                    return
                self._first = self._last

    def num_steps(self, epochs: int) -> int:
        """Returns the number of steps of so many epochs."""
        return sum(self._steps(rows) for epoch in range(epochs) for _, rows in self._pools(epoch))

    def _steps(self, num_rows: int) -> int:
        return num_rounds(math.ceil(num_rows / self._batch_size), self._processes)

    def _pools(self, epoch: int) -> list[tuple[list[Group], int]]:
        """Returns pools of a few row groups in random order, with their number of rows."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._groups))
        pools: list[tuple[list[Group], int]] = []
        for place in order:
            group, rows = self._groups[place]
            if not pools or pools[-1][1] + rows > POOL_ROWS or len(pools[-1][0]) == POOL_GROUPS:
                pools.append(([], 0))
            pools[-1] = ([*pools[-1][0], group], pools[-1][1] + rows)
        return pools


def first_batches(grouped: GroupedSet, split: str, read_pool: Callable[[list[Group]], RowPool[B]]) -> Iterator[B]:
    """Yields batches of the first `SCORED_ROWS` rows of a split in order, after checking their files."""
    left = SCORED_ROWS
    for group, num_rows in grouped.groups(split):
        if left <= 0:
            return
        grouped.check_shards([group[0]])
        pool = read_pool([group])
        rows = range(min(left, num_rows))
        for start in range(0, len(rows), SCORED_BATCH):
            yield pool.batch(list(rows[start : start + SCORED_BATCH]))
        left -= num_rows


def card_text(
    template_name: str,
    tag: str,
    student: PretrainedStudent[Any],
    run_record: Record,
    record: SetRecord,
    own: dict[str, str],
) -> str:
    """Fills the card of a student from its run, the set that it was pretrained on, and the additions of its kind."""
    known = hub_metadata([record])
    return filled(
        files("student.lessons").joinpath(template_name).read_text(encoding="utf-8"),
        ModelCardData(
            language=known.get("language"),
            license=known.get("license", "other"),
            license_name=None if "license" in known else record.licence,
            library_name="distill",
            pipeline_tag=tag,
            base_model=known.get("base_model"),
            datasets=[one["id"] for one in known.get("datasets", [])] or None,
            tags=tags_of(student.config),
        ),
        record=record,
        embedding=f"{embedding_summary(student.config)}; {used_summary(student.config)}",
        num_parameters=f"{sum(p.numel() for p in student.parameters()):,}",
        scores=next(iter(run_record["result"]["history"][-1]["metrics"].values()), {}),
        command=run_record["command"],
        versions=run_record["result"]["versions"],
        **own,
    )
