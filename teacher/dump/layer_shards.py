"""Asking a teacher's layers about the rows of a shard, and writing a file of each signal, row group by row group."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import console
from pipeline.arrays import Ints
from pipeline.errors import TeacherError
from pipeline.sets.layer_files import layer_file
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import LayersName, Range, Shard
from pipeline.sets.signals import LayerSignal
from pipeline.sets.vector_basis import Basis
from pipeline.sources import sentences
from pipeline.stopping import stop_between
from teacher.dump.rows import ShardRows
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher
from teacher.models.layers import layer_outputs

STORED_AT_ONCE = 48 * 2**20  # bytes of a row group, which is to stay below 64 MiB
SAID_AT_ONCE = 2**28  # bytes of what a teacher says, while it becomes a row group


@dataclass(frozen=True)
class Asking:
    """Whom to ask for what.

    Attributes:
        teacher: on its device.
        max_tokens: most padded tokens per batch.
        signals: what is to be written, with the hashes of their bases.
        bases: of those that need one, by layer.
        missing: the ranges of rows of the files that are to be written, by signal.
    """

    teacher: Teacher
    max_tokens: int
    signals: Sequence[LayerSignal]
    bases: Mapping[LayersName, Mapping[int, Basis]]
    missing: Mapping[LayersName, AbstractSet[Range]]


def write_layers(asking: Asking, root: Path, record: SetRecord, rows: ShardRows, shards: Sequence[Shard]) -> None:
    """Writes the files of signals that stand for the rows of shards, by one pass of the teacher over the same rows.

    Args:
        asking: whom, for what.
        root: the set's folder.
        record: its record.
        rows: of the task, with variants.
        shards: of the examples.

    Raises:
        TeacherError: if a number is not finite, or too large for its codec.
    """
    with console.progress(sum(rows.count(shard) for shard in shards), "teacher: layers") as steps:
        for shard in stop_between(shards):
            steps.describe(f"teacher: layers, {shard.split} {shard.index + 1}/{shard.count}")
            left = [signal for signal in asking.signals if shard.range in asking.missing[signal.name]]
            read = rows.read(shard)
            for of in dict.fromkeys(signal.of for signal in left):
                chosen = read if of == "all" else read.filter(pc.equal(read.column("origin"), "original"))
                _write(root, record, asking, shard, [signal for signal in left if signal.of == of], chosen)
            steps.advance(rows.count(shard))


def _write(
    root: Path, record: SetRecord, asking: Asking, shard: Shard, signals: Sequence[LayerSignal], rows: pa.Table
) -> None:
    inputs = asking.teacher.reader.tokenize(*sentences(rows), record.max_seq_length)
    length_R = np.array([len(row.ids) for row in inputs], dtype=np.int64)
    asked = {signal.name: signal.layers for signal in signals}
    split = pa.repeat(pa.scalar(shard.split), rows.num_rows)
    keys = pa.table({"split": split, "source_row": rows.column("source_row"), "variant": rows.column("variant")})
    with ExitStack() as stack:
        files = [stack.enter_context(layer_file(root, record, s, shard.in_folder(s.name))) for s in signals]
        for start, stop in row_groups(length_R, signals):
            some = inputs[start:stop]
            with naming_rows(some, rows.slice(start, stop - start), shard.split):
                said = layer_outputs(asking.teacher, some, asked, asking.max_tokens)
            for signal, write in zip(signals, files, strict=True):
                part = keys.slice(start, stop - start)
                table = signal.table(part, length_R[start:stop], said[signal.name], asking.bases[signal.name])
                problem = signal.rows_problem(table)
                if problem:
                    raise TeacherError(
                        f"{shard.path}: {signal}: {problem}; remove its folder and take --{signal.name}-codec float32"
                    )
                write(table)


def row_groups(length_R: Ints, signals: Sequence[LayerSignal]) -> Iterator[tuple[int, int]]:
    """Where rows of so many tokens are cut, so that neither a row group nor what is said of it becomes too large."""
    said_R = sum((len(s.layers) * s.num_floats(length_R) for s in signals), np.zeros_like(length_R))
    stored = [len(signal.layers) * signal.stored_bytes(length_R) for signal in signals]
    share_R = np.max([4 * said_R / SAID_AT_ONCE, *(size_R / STORED_AT_ONCE for size_R in stored)], axis=0)
    start = 0
    while start < len(length_R):
        fitting = int(np.searchsorted(np.cumsum(share_R[start:]), 1, side="right"))
        stop = start + max(1, fitting)
        yield start, stop
        start = stop
