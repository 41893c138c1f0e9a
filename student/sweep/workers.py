"""Trains several students at the same time, in processes of this machine or by workers on a Ray cluster.

Each process has one copy of the rows. All machines of a cluster see the store and the sweep's folder. A run is written
directly to its final folder, with its checkpoints, so that another worker can resume the run of a lost one.
"""

import atexit
import os
import shlex
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import Pipe, active_children, connection, get_context, parent_process
from pathlib import Path

import torch

from pipeline.cluster.ray_pool import RayFlags, RayPool, WorkerTask, on_cluster
from pipeline.errors import ConfigError, DistillError
from pipeline.file_names import SWEEP_RECORD
from pipeline.settings import as_flags
from student.record import LIBRARIES
from student.settings import TrainSettings
from student.train import train
from student.training_data import Rows, load_data

# A worker process keeps its rows here between trainings, since submitted functions share no other state.
_rows = Rows()


def train_all(
    configs: Sequence[TrainSettings], processes: int
) -> Generator[tuple[int, DistillError | None], None, None]:
    """Trains students. Each process reads the rows of a set once.

    Args:
        configs: the settings. Those with the same set select the same rows.
        processes: number of concurrent trainings, which share the threads of this process.

    Yields: The number of each finished training, with its error or None.

    Raises:
        DistillError: if the rows cannot be read, or the system has ended a process.
    """
    if not configs:
        return
    processes = min(processes, len(configs))
    # Processes share the cores. Each starting torch's default number of threads would slow all of them.
    start = (max(1, torch.get_num_threads() // processes),)
    # Forking a process that has used OpenMP threads can deadlock.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start, initargs=start) as pool:
        # Workers inherit what is blocked here, so that a Ctrl-C while they start is for this process alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        futures = {pool.submit(_train, config): number for number, config in enumerate(configs)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            message = (
                "the system has ended a process, perhaps because of its memory. Repeat the command with fewer "
                "--processes"
            )
            raise DistillError(message) from error
        # Ctrl-C is not an Exception. The workers are stopped, and their checkpoints let a repeated command resume.
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def _start(threads: int) -> None:
    # The terminal sends Ctrl-C to all processes, but only the parent should handle it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    # Only the parent reports progress, otherwise the lines of several trainings would mix.
    os.environ["RANK"] = "worker"
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """A killed parent must not leave a worker that writes to the folder of the repeated command."""
    parent = parent_process()
    assert parent is not None
    over, end = Pipe(duplex=False)

    def watch() -> None:
        if parent.sentinel in connection.wait([parent.sentinel, over]):
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    # A thread that still waits when the interpreter ends keeps modules alive, and duckdb complains about it.
    atexit.register(watcher.join)
    atexit.register(end.close)


def _train(config: TrainSettings) -> DistillError | None:
    return train_one(config, _rows)


def train_one(config: TrainSettings, rows: Rows) -> DistillError | None:
    """Trains a student of a sweep. Returns its error or None.

    Args:
        config: the settings.
        rows: the rows that this process has read, which it keeps for the next training.

    Raises:
        DistillError: if the rows cannot be read, which ends the sweep.
    """
    data = load_data(config, rows)
    try:
        train(config, shlex.join(["distill", "train-student", *as_flags(config)]), data)
    except DistillError as error:
        return error
    return None


@dataclass(frozen=True)
class _Places:
    """The folder of relative paths, and the folder of the runs."""

    here: Path
    folder: Path


def train_on_cluster(
    flags: RayFlags, folder: Path, configs: Sequence[TrainSettings]
) -> Generator[tuple[int, DistillError | None], None, None]:
    """Trains students. See `train_all`.

    Args:
        flags: the cluster, and the number of workers.
        folder: the folder of the sweep, with its record.
        configs: the settings. Those with the same set select the same rows.

    Raises:
        ConfigError: if a machine does not see the folder.
        DistillError: if the rows cannot be read there, or a run kills its workers.
    """
    if not configs:
        return
    task = WorkerTask(_start_on_cluster, _Places(Path.cwd(), folder), LIBRARIES)
    with on_cluster(flags) as ray:
        pool: RayPool[int, list[DistillError]] = RayPool(
            ray, flags, task, lambda number: str(configs[number].output_dir), configs.__getitem__
        )
        for number, wrong in pool.results(range(len(configs))):
            yield number, next(iter(wrong), None)


def _start_on_cluster(places: _Places) -> Callable[[TrainSettings], list[DistillError]]:
    """Returns, in a worker, the function that trains a student and returns its error or None."""
    if not (places.here / places.folder / SWEEP_RECORD).exists():
        where = places.here / places.folder
        raise ConfigError(
            f"the workers do not see {where}. A sweep on a cluster needs a file system that all machines share"
        )
    # Relative paths in the settings start at the folder of the command.
    os.chdir(places.here)
    rows = Rows()

    def run(config: TrainSettings) -> list[DistillError]:
        error = train_one(config, rows)
        return [] if error is None else [error]

    return run
