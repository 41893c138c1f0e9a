"""Executors, which write shards: the processes of a command under Accelerate, or workers on a Ray cluster.

Workers receive the teacher that the driver has loaded and hashed, and the rows of each shard. They return the bytes of
its files. Workers therefore need no data, model or store, and cannot use other rows or weights than the driver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import PartialState

from pipeline import console
from pipeline.cluster.launchers import Job
from pipeline.cluster.ray_pool import RayPool, RayWriteFlags, WorkerTask, on_cluster
from pipeline.cluster.shared_folder import marked, require_marked, require_seen
from pipeline.devices import processes
from pipeline.files import make_folder, write_atomically
from pipeline.sets.record_parts import Shard
from teacher.dump.driver import Held
from teacher.dump.shard_jobs import ShardJob
from teacher.models.loaded import inference_mode
from teacher.settings import JobFlags

ShardRows = tuple[Shard, Any]  # a shard, and its rows
# The files of a shard by their path in the set: their bytes, or their sizes.
Files = Mapping[str, Any]
RunShards = Callable[[WorkerTask[Files]], Iterator[Files]]  # returns the files of each shard


@dataclass(frozen=True)
class Processes:
    """The processes of this command, or the workers of its cluster. See `Executor`."""

    state: PartialState
    job: Job
    cluster: RayWriteFlags | None

    @classmethod
    def of(cls, jobs: JobFlags, cluster: RayWriteFlags | None) -> "Processes":
        """Returns the processes or workers that the flags name."""
        return cls(processes(), jobs.job, cluster)

    @property
    def is_main(self) -> bool:
        """See `Executor`."""
        return bool(self.state.is_main_process)

    def wait(self) -> None:
        """See `Executor`."""
        self.state.wait_for_everyone()

    def share(self, shards: Sequence[Shard]) -> list[Shard]:
        """See `Executor`."""
        return list(shards[self.state.process_index :: self.state.num_processes])

    def run(self, job: ShardJob, root: Path, rows: Held, shards: Sequence[Shard]) -> None:
        """See `Executor`.

        Raises:
            ConfigError: if workers shall write, and one does not see the set's folder.
            PassingError: if this process does not see what they have written.
        """
        if not shards:
            return
        cluster = self.cluster
        if cluster is None:
            with inference_mode(self.state.device, job.precision):
                job.write(root, rows, shards)
            return
        assert job.model is not None, "a cluster is for jobs with a teacher"
        # Pickled GPU tensors would be restored on the GPU, which a worker may not have.
        job.model.model.to("cpu")
        write = _workers_write if cluster.ray_write == "workers" else _driver_writes
        with on_cluster(cluster) as ray, console.progress(len(shards), "shards on the cluster") as steps:

            def run_shards(task: WorkerTask[Files]) -> Iterator[Files]:
                pool: RayPool[Shard, Files] = RayPool(
                    ray, cluster, task, lambda shard: shard.path, lambda shard: (shard, rows.hold(shard))
                )
                for _, files in pool.results(shards):
                    yield files
                    steps.advance(1)

            write(root, job, run_shards)
        job.model.model.to(self.state.device)


def _driver_writes(root: Path, job: ShardJob, run_shards: RunShards) -> None:
    for contents in run_shards(WorkerTask(_start_returning, job, tuple(job.record.versions))):
        for path, content in contents.items():
            _write(root / path, content)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _workers_write(root: Path, job: ShardJob, run_shards: RunShards) -> None:
    sizes: dict[str, int] = {}
    with marked(root / job.folders[0]) as mark:
        shared = (job, root.absolute(), mark)
        for written in run_shards(WorkerTask(_start_writing, shared, tuple(job.record.versions))):
            sizes |= written
    # On NFS files of other machines appear late, and without waiting the driver would report them as missing.
    require_seen(root, sizes)


def _start_returning(job: ShardJob) -> Callable[[ShardRows], dict[str, bytes]]:
    """Returns, in a worker, the function that converts the rows of a shard to the bytes of its files."""
    write = _start(job)

    def contents(held: ShardRows) -> dict[str, bytes]:
        # A worker writes into a folder of its own machine and returns bytes, so it needs no shared file system.
        with TemporaryDirectory() as name:
            root = Path(name)
            for folder in job.folders:
                make_folder(root / folder)
            return {path: (root / path).read_bytes() for path in write(root, held)}

    return contents


def _start_writing(shared: tuple[ShardJob, Path, Path]) -> Callable[[ShardRows], dict[str, int]]:
    """Returns, in a worker that sees the set's folder, the function that writes the files of a shard there."""
    job, root, mark = shared
    require_marked(mark)
    for folder in job.folders:
        # Also checks that this worker can write there.
        make_folder(root / folder)
    write = _start(job)
    return lambda held: {path: (root / path).stat().st_size for path in write(root, held)}


def _start(job: ShardJob) -> Callable[[Path, ShardRows], Iterator[str]]:
    """Returns, in a worker, the function that writes the files of a shard into a folder and returns their paths."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert job.model is not None, "a cluster is for jobs with a teacher"
    job.model.model.to(device)
    return partial(_written, job, device)


def _written(job: ShardJob, device: torch.device, root: Path, held: ShardRows) -> Iterator[str]:
    shard, rows = held
    with inference_mode(device, job.precision):
        job.write(root, rows, [shard])
    return job.written(root, shard)
