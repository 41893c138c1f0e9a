"""The driver of stage one: `run_dump` writes the set of a `Dump`, which implements one kind of rows.

Every process of every job computes the same plan and stages it, or opens the set that another process has staged. Then
each writes its share of the missing shards. The process that finds all shards written finishes the set. A shard may be
written anywhere and in any order. This module does not import torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline import console
from pipeline.cluster.launchers import Job
from pipeline.cluster.ray_pool import (
    RayPool,
    RayWriteFlags,
    WorkerTask,
    marked,
    on_cluster,
    require_marked,
    require_seen,
)
from pipeline.files import make_folder, write_atomically
from pipeline.sets.kinds import SETS
from pipeline.sets.record import Scores, SetRecord, read_record_of
from pipeline.sets.record_parts import Shard
from pipeline.sets.write import complete_and_verify, reopen_set, start_set, unfinished_shards
from teacher.dump.shard_jobs import ShardJob

if TYPE_CHECKING:
    from accelerate import PartialState

    from pipeline.devices import OneProcess


ALONE = Job(0, 1)
HeldShard = tuple[Shard, Any]  # a shard, and its rows
# The files of a shard by their path in the set: their bytes, or their sizes.
Files = Mapping[str, Any]


@dataclass(frozen=True)
class Executor:
    """Writes the shards of a set: in the processes of this command, or by workers on a Ray cluster.

    Workers receive the teacher that the driver has loaded and hashed, and the rows of each shard. They return the bytes
    of its files. Workers therefore need no data, model or store, and cannot use other rows or weights than the driver.

    Attributes:
        state: the processes. None: only this one, for answers that need no teacher.
        job: the number of this command among the jobs of a launcher.
        cluster: the cluster of the workers, if they write.
    """

    state: "PartialState | OneProcess | None" = None
    job: Job = ALONE
    cluster: RayWriteFlags | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process finishes the set."""
        return self.state is None or bool(self.state.is_main_process)

    def wait(self) -> None:
        """Waits for the other processes of this command."""
        if self.state is not None:
            self.state.wait_for_everyone()

    def share(self, shards: Sequence[Shard]) -> list[Shard]:
        """Returns those of this job's shards that this process has to write."""
        return list(shards if self.state is None else shards[self.state.process_index :: self.state.num_processes])

    def run(self, job: ShardJob, root: Path, rows: Any, shards: Sequence[Shard]) -> None:
        """Writes shards of a set. ``rows.hold(shard)`` returns the rows of one shard, in memory, to send to a worker.

        Raises:
            ConfigError: if workers shall write, and one does not see the set's folder.
            PassingError: if this process does not see what they have written.
        """
        if self.state is None:
            job.write(root, rows, shards)
        elif self.cluster is None:
            from teacher.models.loaded import inference_mode

            with inference_mode(self.state.device, job.precision):
                job.write(root, rows, shards)
        else:
            assert job.model is not None, "a cluster is for jobs with a teacher"
            # Pickled GPU tensors would be restored on the GPU, which a worker may not have.
            job.model.model.to("cpu")
            self._run_on(self.cluster, job, root, rows, shards)
            job.model.model.to(self.state.device)

    @staticmethod
    def _run_on(cluster: RayWriteFlags, job: ShardJob, root: Path, rows: Any, shards: Sequence[Shard]) -> None:
        versions = tuple(job.record.versions)
        with on_cluster(cluster) as ray, console.progress(len(shards), "shards on the cluster") as steps:

            def run_shards(task: WorkerTask[Files]) -> Iterator[Files]:
                pool: RayPool[Shard, Files] = RayPool(
                    ray, cluster, task, lambda shard: shard.path, lambda shard: (shard, rows.hold(shard))
                )
                for _, files in pool.results(shards):
                    yield files
                    steps.advance(1)

            if cluster.ray_write == "driver":
                for contents in run_shards(WorkerTask(_start_returning, job, versions)):
                    for path, content in contents.items():
                        _write(root / path, content)
                return
            sizes: dict[str, int] = {}
            with marked(root / job.folders[0]) as mark:
                for written in run_shards(WorkerTask(_start_writing, (job, root.absolute(), mark), versions)):
                    sizes |= written
        # On NFS files of other machines appear late, and without waiting the driver would report them as missing.
        require_seen(root, sizes)


class Dump(ABC):
    """The dump of a command. Each kind of rows has a subclass. `run_dump` uses its methods from top to bottom."""

    root: Path  # the set's folder
    rows: Any  # the source of the rows

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
        """Adds the other parts of a finished set. Called in all processes. The record is None on other ranks than 0."""
        return record


def run_dump(dump: Dump, executor: Executor) -> SetRecord | None:
    """Writes this process's share of a set, and finishes the set if that was the last share.

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
    if not executor.is_main:
        return dump.finish(None, executor)
    # Read again, because another job may have finished the set in the meantime.
    record = read_record_of(dump.root, planned.kind, "another set has replaced it")
    missing = unfinished_shards(dump.root, record)
    if missing:
        console.note(f"other jobs have to write {len(missing)} of {len(record.shards)} shards")
    return dump.finish(record if missing else complete_and_verify(dump.root, record, dump.scores), executor)


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


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _start_returning(job: ShardJob) -> Callable[[HeldShard], dict[str, bytes]]:
    """Returns, in a worker, the function that converts the rows of a shard to the bytes of its files."""
    write = _start(job)

    def contents(held: HeldShard) -> dict[str, bytes]:
        # A worker writes into a folder of its own machine and returns bytes, so it needs no shared file system.
        with TemporaryDirectory() as name:
            root = Path(name)
            for folder in job.folders:
                make_folder(root / folder)
            return {path: (root / path).read_bytes() for path in write(root, held)}

    return contents


def _start_writing(shared: tuple[ShardJob, Path, Path]) -> Callable[[HeldShard], dict[str, int]]:
    """Returns, in a worker that sees the set's folder, the function that writes the files of a shard there."""
    job, root, mark = shared
    require_marked(mark)
    for folder in job.folders:
        # Also checks that this worker can write there.
        make_folder(root / folder)
    write = _start(job)
    return lambda held: {path: (root / path).stat().st_size for path in write(root, held)}


def _start(job: ShardJob) -> Callable[[Path, HeldShard], Iterator[str]]:
    """Returns, in a worker, the function that writes the files of a shard into a folder and returns their paths."""
    import torch

    from teacher.models.loaded import inference_mode

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert job.model is not None, "a cluster is for jobs with a teacher"
    job.model.model.to(device)

    def write(root: Path, held: HeldShard) -> Iterator[str]:
        shard, rows = held
        with inference_mode(device, job.precision):
            job.write(root, rows, [shard])
        return job.written(root, shard)

    return write
