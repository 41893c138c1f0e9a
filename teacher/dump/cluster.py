"""Shards that workers on a Ray cluster ask about: the driver alone reads rows and writes files.

Workers get the teacher as the driver has loaded and hashed it, and of each shard its rows, and give back the bytes of
its file. So they need neither the data nor the model nor the store, and cannot answer for other rows or other weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline import console
from pipeline.cluster.config import RayFlags
from pipeline.cluster.crew import Crew, Trade, on_cluster
from pipeline.files import make_folder, write_atomically
from pipeline.logit_set.record import SetRecord
from pipeline.logit_set.record_parts import Shard
from teacher.inference.loaded import LoadedModel
from teacher.inference.precision import inference_mode

Ask = Callable[[Path, SetRecord, Any, list[Shard]], None]


@dataclass(frozen=True)
class Errand:
    """What a worker needs for every shard of a set.

    Attributes:
        record: of the set.
        model: the teacher, on the CPU.
        precision: of its arithmetic.
        ask: asks the teacher about rows, and writes shards of them into a folder; it holds the teacher, too.
    """

    record: SetRecord
    model: LoadedModel
    precision: str
    ask: Ask


def ask_here_or_there(
    flags: RayFlags, root: Path, errand: Errand, rows: Any, shards: list[Shard], hold: Callable[[Shard], Any]
) -> None:
    """Asks the teacher about shards of a set and writes them: in this process, or by workers if the flags say so.

    Args:
        flags: whether there is a cluster.
        root: the set's folder.
        errand: what to do; its teacher on this process's device.
        rows: all rows.
        shards: those to be written.
        hold: gives the rows of one shard, in memory, of the same kind as ``rows``.
    """
    device = errand.model.model.device
    if flags.ray is None:
        with inference_mode(device, errand.precision):
            errand.ask(root, errand.record, rows, shards)
        return
    errand.model.model.to("cpu")
    trade = Trade(_start, errand, tuple(errand.record.versions))
    total = sum(shard.stop - shard.start for shard in shards)
    with on_cluster(flags) as ray, console.progress(total, "teachers on the cluster") as steps:
        crew: Crew[Shard, bytes] = Crew(ray, flags, trade, lambda shard: shard.path, lambda shard: (shard, hold(shard)))
        for shard, content in crew.results(shards):
            _write(root / shard.path, content)
            steps.advance(shard.stop - shard.start)
    errand.model.model.to(device)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _start(errand: Errand) -> Callable[[tuple[Shard, Any]], bytes]:
    """In a worker: the teacher on its device, and what turns the rows of a shard into the bytes of its file."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    errand.model.model.to(device)

    def write(held: tuple[Shard, Any]) -> bytes:
        shard, rows = held
        with TemporaryDirectory() as folder, inference_mode(device, errand.precision):
            root = Path(folder)
            make_folder((root / shard.path).parent)
            errand.ask(root, errand.record, rows, [shard])
            return (root / shard.path).read_bytes()

    return write
