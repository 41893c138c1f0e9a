"""Training several students at the same time, each process with one copy of the rows."""

import atexit
import os
import shlex
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import Pipe, active_children, connection, get_context, parent_process

import torch

from pipeline.errors import DistillError
from pipeline.settings import as_flags
from student.config import TrainConfig
from student.train.train import train
from student.train.training_data import Rows, load_data

_rows: Rows = {}  # of a worker: what it has read


def train_all(configs: Sequence[TrainConfig], processes: int) -> Generator[tuple[int, DistillError | None], None, None]:
    """Trains students; each process reads the rows of a set once.

    Args:
        configs: they choose the same rows of a set that several name.
        processes: how many to train at the same time; they share the threads of this one.

    Yields:
        The number of each as it is finished, with what was wrong with it, if anything.

    Raises:
        DistillError: if the rows cannot be read, or the system has ended a process.
    """
    if not configs:
        return
    processes = min(processes, len(configs))
    start = (max(1, torch.get_num_threads() // processes),)
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start, initargs=start) as pool:
        futures = {pool.submit(_train, config): number for number, config in enumerate(configs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            message = (
                "the system has ended a process, perhaps for its memory; repeat the command with fewer --processes"
            )
            raise DistillError(message) from error
        except BaseException:  # Ctrl-C, too: what runs is stopped and can be gone on with
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def _start(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    _end_with_parent()
    os.environ["RANK"] = "worker"  # the parent alone reports
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """A killed parent must not leave a worker that writes where the repeated command goes on."""
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


def _train(config: TrainConfig) -> DistillError | None:
    return train_one(config, _rows)


def train_one(config: TrainConfig, rows: Rows) -> DistillError | None:
    """Trains a student of a sweep; gives what was wrong with it, if anything.

    Args:
        config: its settings.
        rows: what this process has read of sets, and keeps for the next one.

    Raises:
        DistillError: if the rows cannot be read, which ends the sweep.
    """
    data = load_data(config, rows)
    try:
        train(config, shlex.join(["distill", "train-student", *as_flags(config)]), data)
    except DistillError as error:
        return error
    return None
