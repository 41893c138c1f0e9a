"""Shards that workers on a Ray cluster ask about: the driver alone reads rows, and writes files unless told otherwise.

Workers get the teacher as the driver has loaded and hashed it, and of each shard its rows, and give back the bytes of
its files. So they need neither the data nor the model nor the store, and cannot answer for other rows or other weights.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline import console
from pipeline.cluster.ray_pool import RayPool, RayWriteFlags, WorkerTask, on_cluster
from pipeline.cluster.shared_folder import marked, require_marked, require_seen
from pipeline.files import make_folder, write_atomically
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import KindName, LayersName, Shard
from teacher.models.loaded import LoadedModel, inference_mode

Ask = Callable[[Path, SetRecord, Any, list[Shard]], None]
Held = tuple[Shard, Any]  # a shard, and its rows
Files = Mapping[str, Any]  # of a shard, by the path in the set: their bytes, or how many these are
WorkOff = Callable[[WorkerTask[Files]], Iterator[Files]]  # what comes of each shard


@dataclass(frozen=True)
class Errand:
    """What a worker needs for every shard of a set.

    Attributes:
        record: of the set.
        model: the teacher, on the CPU.
        precision: of its arithmetic.
        ask: asks the teacher about rows, and writes files of shards of them into a folder; it holds the teacher, too.
        folders: which files of a shard are to be written, by the folder in the set.
    """

    record: SetRecord
    model: LoadedModel
    precision: str
    ask: Ask
    folders: tuple[KindName | LayersName, ...]

    def written(self, root: Path, shard: Shard) -> Iterator[str]:
        """The files of a shard that are there."""
        for folder in self.folders:
            path = shard.in_folder(folder).path
            if (root / path).exists():
                yield path


def ask_here_or_there(flags: RayWriteFlags, root: Path, errand: Errand, rows: Any, shards: list[Shard]) -> None:
    """Asks the teacher about shards of a set and writes them: in this process, or by workers if the flags say so.

    Args:
        flags: whether there is a cluster, and who writes.
        root: the set's folder.
        errand: what to do; its teacher on this process's device.
        rows: all rows; ``rows.hold(shard)`` gives those of one shard, in memory.
        shards: those to be written.

    Raises:
        ConfigError: if workers shall write, and one does not see the set's folder.
        PassingError: if this process does not see what they have written.
    """
    device = errand.model.model.device
    if flags.ray is None:
        with inference_mode(device, errand.precision):
            errand.ask(root, errand.record, rows, shards)
        return
    errand.model.model.to("cpu")
    ask = _workers_write if flags.ray_write == "workers" else _driver_writes
    with on_cluster(flags) as ray, console.progress(len(shards), "shards on the cluster") as steps:

        def work_off(task: WorkerTask[Files]) -> Iterator[Files]:
            pool: RayPool[Shard, Files] = RayPool(
                ray, flags, task, lambda shard: shard.path, lambda shard: (shard, rows.hold(shard))
            )
            for _, files in pool.results(shards):
                yield files
                steps.advance(1)

        ask(root, errand, work_off)
    errand.model.model.to(device)


def _driver_writes(root: Path, errand: Errand, work_off: WorkOff) -> None:
    for contents in work_off(WorkerTask(_start_giving, errand, tuple(errand.record.versions))):
        for path, content in contents.items():
            _write(root / path, content)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _workers_write(root: Path, errand: Errand, work_off: WorkOff) -> None:
    sizes: dict[str, int] = {}
    with marked(root / errand.folders[0]) as mark:
        for written in work_off(
            WorkerTask(_start_writing, (errand, root.absolute(), mark), tuple(errand.record.versions))
        ):
            sizes |= written
    require_seen(root, sizes)


def _start_giving(errand: Errand) -> Callable[[Held], dict[str, bytes]]:
    """In a worker: what turns the rows of a shard into the bytes of its files."""
    ask = _start(errand)

    def give(held: Held) -> dict[str, bytes]:
        with TemporaryDirectory() as name:
            root = Path(name)
            for folder in errand.folders:
                make_folder(root / folder)
            return {path: (root / path).read_bytes() for path in ask(root, held)}

    return give


def _start_writing(shared: tuple[Errand, Path, Path]) -> Callable[[Held], dict[str, int]]:
    """In a worker that sees the set's folder: what writes the files of a shard there, and gives their sizes."""
    errand, root, mark = shared
    require_marked(mark)
    for folder in errand.folders:
        make_folder(root / folder)  # by which it is known to be writable
    ask = _start(errand)
    return lambda held: {path: (root / path).stat().st_size for path in ask(root, held)}


def _start(errand: Errand) -> Callable[[Path, Held], Iterator[str]]:
    """In a worker: the teacher on its device, and what writes the files of a shard into a folder, and names them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    errand.model.model.to(device)

    def ask(root: Path, held: Held) -> Iterator[str]:
        shard, rows = held
        with inference_mode(device, errand.precision):
            errand.ask(root, errand.record, rows, [shard])
        return errand.written(root, shard)

    return ask
