"""The driver of stage one: `run_dump` writes the set of a `Dump`, which implements one kind of rows.

Every process of every job computes the same plan and stages it, or opens the set that another process has staged. Then
each writes its share of the missing shards. The process that finds all shards written finishes the set. A shard may be
written anywhere and in any order. This module does not import torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pipeline import console
from pipeline.cluster.launchers import Job
from pipeline.files import make_folder
from pipeline.sets.kinds import SETS
from pipeline.sets.record import Scores, SetRecord, read_record_of
from pipeline.sets.record_parts import KindName, Shard
from pipeline.sets.write import complete_and_verify, reopen_set, start_set, unfinished_shards
from teacher.dump.shard_jobs import ShardJob


class Held(Protocol):
    """The source of the rows of shards."""

    def hold(self, shard: Shard) -> Any:
        """Returns the rows of one shard, in memory, to be sent to a worker."""


class Executor(Protocol):
    """Writes the shards of a set."""

    @property
    def job(self) -> Job:
        """The number of this command among the jobs of a launcher."""

    @property
    def is_main(self) -> bool:
        """Whether this process finishes the set."""

    def wait(self) -> None:
        """Waits for the other processes of this command."""

    def share(self, shards: Sequence[Shard]) -> list[Shard]:
        """Returns those of this job's shards that this process has to write."""

    def run(self, job: ShardJob, root: Path, rows: Held, shards: Sequence[Shard]) -> None:
        """Writes shards of a set."""


class ThisProcess:
    """Uses only this process, for answers that need no teacher. See `Executor`."""

    job = Job(0, 1)
    is_main = True

    def wait(self) -> None:
        """See `Executor`."""

    def share(self, shards: Sequence[Shard]) -> list[Shard]:
        """See `Executor`."""
        return list(shards)

    def run(self, job: ShardJob, root: Path, rows: Held, shards: Sequence[Shard]) -> None:
        """See `Executor`."""
        job.write(root, rows, shards)


class Dump(ABC):
    """The dump of a command. Each kind of rows has a subclass. `run_dump` uses its methods from top to bottom.

    Attributes:
        root: the set's folder.
        rows: the source of the rows.
    """

    root: Path
    rows: Held

    @abstractmethod
    def probe(self) -> None:
        """Loads the teacher, and reports every problem that can be found before the expensive work."""

    @cached_property
    @abstractmethod
    def record(self) -> SetRecord:
        """The planned record: settings, shards, signals."""

    @abstractmethod
    def tokenizer_json(self) -> str:
        """Returns the content for ``tokenizer.json``."""

    def start(self, record: SetRecord) -> None:  # noqa: B027 - most kinds need nothing
        """Adds the set's other files to the folder, before any shard is looked for."""

    @abstractmethod
    def job(self, record: SetRecord) -> ShardJob:
        """Returns the object that writes shards. Called only if there are some to write."""

    def scores(self, record: SetRecord) -> Scores:
        """Returns the teacher's metrics per split, from the complete set."""
        return SETS[record.kind](self.root, record).scores()

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        """Adds the other parts of a finished set. Called in every process.

        Args:
            record: the record on disk. None on other ranks than the first.
            executor: the executor of the shards.
        """
        return record


def run_dump(dump: Dump, executor: Executor) -> SetRecord | None:
    """Writes this process's share of a set, and finishes the set if that was the last share.

    Args:
        dump: the dump.
        executor: who writes.

    Returns: The record, still ``staged`` if other jobs have shards to write. None on other ranks than the first.

    Raises:
        ConfigError: for flags that do not fit.
        DataError: if rows are wrong, or the folder cannot be written.
        FingerprintMismatchError: if the folder holds a set with other settings.
        TeacherError: if the teacher does not fit, or its outputs are not finite.
    """
    make_folder(dump.root.parent)
    # Wrong labels, a full disk or a missing model fail here, before hours of inference.
    dump.probe()
    planned = dump.record
    if executor.job.source:
        console.note(f"job {executor.job.index} of {executor.job.count} ({executor.job.source})")
    # The record on disk counts from here on, since another process may have staged the set first.
    record = start_set(dump.root, planned, dump.tokenizer_json())
    dump.start(record)
    shards = _my_shards(dump.root, record, executor)
    if shards:
        executor.run(dump.job(record), dump.root, dump.rows, shards)
    executor.wait()
    finished = _finished(dump, planned.kind) if executor.is_main else None
    return dump.finish(finished, executor)


def _my_shards(root: Path, record: SetRecord, executor: Executor) -> list[Shard]:
    """Returns this process's share: every n-th unfinished shard of this job."""
    executor.wait()
    missing = unfinished_shards(root, record)
    # No process writes before all have looked. Otherwise the shares would differ.
    executor.wait()
    if missing and record.state != "staged" and executor.is_main:
        reopen_set(root, record, missing)
    unfinished = {shard.path for shard in missing}
    if len(unfinished) < len(record.shards):
        console.note(f"{len(record.shards) - len(unfinished)} of {len(record.shards)} shards are there already")
    # Jobs divide all shards, not the missing ones: they start at different times and see different shards missing.
    mine = record.shards[executor.job.index :: executor.job.count]
    return executor.share([shard for shard in mine if shard.path in unfinished])


def _finished(dump: Dump, kind: KindName) -> SetRecord:
    """Completes and verifies a set if all its shards exist, otherwise returns its record unchanged."""
    # Read again, because another job may have finished the set in the meantime.
    record = read_record_of(dump.root, kind, "another set has replaced it")
    missing = unfinished_shards(dump.root, record)
    if missing:
        console.note(f"other jobs have to write {len(missing)} of {len(record.shards)} shards")
        return record
    return complete_and_verify(dump.root, record, dump.scores)
