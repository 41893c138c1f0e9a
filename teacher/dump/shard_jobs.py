"""Jobs that write shards in any process, reading ahead of the teacher and writing behind it.

Tokenizers and Parquet release Python's lock, so reading and writing run in threads during the forward pass. This module
does not import torch, because imported answers are written by the same jobs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from pipeline import console
from pipeline.interrupts import stop_between
from pipeline.sets.files import Statistics
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import KindName, LayersName, Shard
from pipeline.sets.write import write_shard

if TYPE_CHECKING:
    from teacher.models.loaded import LoadedModel

T = TypeVar("T")
Batch = TypeVar("Batch")
# called with the number of finished rows
Advance = Callable[[int], None]


@dataclass(frozen=True)
class ShardJob(ABC):
    """Everything that a process needs to write any shard of a set. It is sent to workers on a cluster.

    Attributes:
        record: of the set.
        model: the teacher, or None for known answers.
        precision: of its arithmetic.
        max_tokens: maximum number of padded tokens per batch.
    """

    record: SetRecord
    model: "LoadedModel | None"
    precision: str
    max_tokens: int

    @property
    def folders(self) -> tuple[KindName | LayersName, ...]:
        """The folders of the files in the set."""
        return (self.record.kind,)

    @abstractmethod
    def write(self, root: Path, rows: Any, shards: Sequence[Shard]) -> None:
        """Writes the files of shards into a folder with the structure of a set. Call it inside `inference_mode`."""

    def written(self, root: Path, shard: Shard) -> Iterator[str]:
        """Returns the paths of those files of a shard that exist."""
        for folder in self.folders:
            path = shard.in_folder(folder).path
            if (root / path).exists():
                yield path


@dataclass(frozen=True)
class RowJob(ShardJob, Generic[Batch]):
    """Writes the rows of a set with the signal of the teacher. Each kind of rows has a subclass."""

    title: ClassVar[str] = "teacher"

    @abstractmethod
    def count(self, rows: Any, shard: Shard) -> int:
        """Returns about how many rows a shard has, for the progress bar."""

    @abstractmethod
    def read(self, rows: Any, shard: Shard) -> Iterator[Batch]:
        """Reads and tokenises a shard, in a thread while the teacher works on the previous one."""

    @abstractmethod
    def tables(
        self, rows: Any, shard: Shard, batches: Iterator[Batch], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        """Runs the teacher on the batches of a shard, and returns its row groups.

        Args:
            rows: see `write`.
            shard: the shard.
            batches: the result of `read`.
            advance: called with the number of finished rows.
            statistics: receives sums over the shard, which are complete with the last table.
        """

    def summary(self, root: Path, shard: Shard, statistics: Statistics) -> str:
        """Returns the text of the progress bar for a written shard."""
        return ""

    def write(self, root: Path, rows: Any, shards: Sequence[Shard]) -> None:
        last = ""

        def save(shard: Shard, tables: Iterator[pa.Table], statistics: Statistics) -> None:
            nonlocal last
            write_shard(root, self.record, shard, tables, statistics or None)
            last = self.summary(root, shard, statistics)

        def complete() -> Iterator[Callable[[], None]]:
            for _, items in stop_between(groupby(prefetched(self._read(rows, shards)), lambda item: item[0].path)):
                shard, _ = next(items)
                steps.describe(f"{self.title}: {shard.split} {shard.index + 1}/{shard.count}{last}")
                statistics: Statistics = {}
                batches = (batch for _, batch in items if batch is not None)
                tables = self.tables(rows, shard, batches, steps.advance, statistics)
                # A shard of one row group is written in the background, while the teacher works on the next shard.
                first = list(islice(tables, 2))
                # Several row groups may not fit into memory, so each is written when it is ready.
                if len(first) > 1:
                    save(shard, chain(first, tables), statistics)
                else:
                    yield partial(save, shard, iter(first), statistics)

        with console.progress(sum(self.count(rows, shard) for shard in shards), self.title) as steps:
            write_behind(complete(), lambda later: later())

    def _read(self, rows: Any, shards: Sequence[Shard]) -> Iterator[tuple[Shard, Batch | None]]:
        """Yields each shard with None first, so that a shard without batches appears, then with each of its batches."""
        for shard in shards:
            yield shard, None
            for batch in self.read(rows, shard):
                yield shard, batch


def start(job: Callable[[], T]) -> Callable[[], T]:
    """Starts a job in a thread. Returns a function that waits for its result or raises its error.

    The thread does not keep a stopped command alive, so a job must write files atomically.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(job())
        except BaseException as error:  # noqa: BLE001 - re-raised in the thread that waits for the result
            result.set_exception(error)

    # A daemon thread does not keep a stopped command alive. Files are written atomically, so none is left incomplete.
    Thread(target=run, daemon=True).start()
    return result.result


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """Yields the same items in the same order. The next one is made while the caller works on this one."""
    done = object()
    coming = start(lambda: next(items, done))
    while (item := coming()) is not done:
        coming = start(lambda: next(items, done))
        yield item  # type: ignore[misc]


def write_behind(items: Iterator[T], write: Callable[[T], object]) -> None:
    """Writes each item in order while the next one is made, at most one at a time.

    A started write is finished even if the next item fails, so that its file need not be written again.
    """
    finished: Callable[[], object] = start(lambda: None)
    try:
        for item in items:
            finished()
            finished = start(partial(write, item))
    finally:
        finished()
