"""Students trained by workers on a Ray cluster, whose machines all see the store and the sweep's folder.

A run is written where it will lie, with its checkpoints, so that what a lost worker has begun another goes on with.
"""

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.cluster.config import RayFlags
from pipeline.cluster.crew import Crew, Trade, on_cluster
from pipeline.errors import ConfigError, DistillError
from pipeline.training.run_record import SWEEP_RECORD
from student.config import TrainConfig
from student.sweep.workers import train_one
from student.train.outcome import LIBRARIES
from student.train.training_data import Rows


@dataclass(frozen=True)
class _Errand:
    """What a worker needs for every run: from where paths count, and where the runs lie."""

    here: Path
    folder: Path


def train_on_cluster(
    flags: RayFlags, folder: Path, configs: Sequence[TrainConfig]
) -> Generator[tuple[int, DistillError | None], None, None]:
    """Trains students, see `train_all`.

    Args:
        flags: the cluster, and how many workers.
        folder: the sweep's, with its record.
        configs: they choose the same rows of a set that several name.

    Raises:
        ConfigError: if a machine does not see the folder.
        DistillError: if the rows cannot be read there, or workers die of a run.
    """
    if not configs:
        return
    trade = Trade(_start, _Errand(Path.cwd(), folder), LIBRARIES)
    with on_cluster(flags) as ray:
        crew: Crew[int, list[DistillError]] = Crew(
            ray, flags, trade, lambda number: str(configs[number].output_dir), configs.__getitem__
        )
        for number, wrong in crew.results(range(len(configs))):
            yield number, next(iter(wrong), None)


def _start(errand: _Errand) -> Callable[[TrainConfig], list[DistillError]]:
    """In a worker: what trains a student, and gives what was wrong with it, if anything."""
    if not (errand.here / errand.folder / SWEEP_RECORD).exists():
        where = errand.here / errand.folder
        raise ConfigError(
            f"{where} is not seen by the workers; a sweep on a cluster needs a file system that all share"
        )
    os.chdir(errand.here)
    rows: Rows = {}

    def run(config: TrainConfig) -> list[DistillError]:
        error = train_one(config, rows)
        return [] if error is None else [error]

    return run
