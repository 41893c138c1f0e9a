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
from pipeline.sets.record_parts import LayersName, Range, Shard
from pipeline.sets.signals import LayerSignal
from pipeline.sets.vector_codecs import Basis
from pipeline.sources import sentences
from pipeline.stopping import stop_between
from teacher.dump.rows import ShardRows
from teacher.dump.shards import ShardJob
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher
from teacher.models.layers import layer_outputs

STORED_AT_ONCE = 48 * 2**20  # bytes of a row group, which is to stay below 64 MiB
SAID_AT_ONCE = 2**28  # bytes of what a teacher says, while it becomes a row group


@dataclass(frozen=True)
class LayerJob(ShardJob):
    """Writes the files of signals that stand for the rows of shards, by one pass of the teacher over the same rows.

    Attributes:
        signals: what is to be written, with the hashes of their bases.
        bases: of those that need one, by layer.
        missing: the ranges of rows of the files that are to be written, by signal.
    """

    model: Teacher
    signals: Sequence[LayerSignal]
    bases: Mapping[LayersName, Mapping[int, Basis]]
    missing: Mapping[LayersName, AbstractSet[Range]]

    @property
    def folders(self) -> tuple[LayersName, ...]:
        """See `ShardJob`."""
        return tuple(self.missing)

    def write(self, root: Path, rows: ShardRows, shards: Sequence[Shard]) -> None:
        """See `ShardJob`.

        Raises:
            TeacherError: if a number is not finite, or too large for its codec.
        """
        with console.progress(sum(rows.count(shard) for shard in shards), "teacher: layers") as steps:
            for shard in stop_between(shards):
                steps.describe(f"teacher: layers, {shard.split} {shard.index + 1}/{shard.count}")
                left = [signal for signal in self.signals if shard.range in self.missing[signal.name]]
                read = rows.read(shard)
                for of in dict.fromkeys(signal.of for signal in left):
                    chosen = read if of == "all" else read.filter(pc.equal(read.column("origin"), "original"))
                    self._write(root, shard, [signal for signal in left if signal.of == of], chosen)
                steps.advance(rows.count(shard))

    def _write(self, root: Path, shard: Shard, signals: Sequence[LayerSignal], rows: pa.Table) -> None:
        inputs = self.model.reader.tokenize(*sentences(rows), self.record.max_seq_length)
        length_R = np.array([len(row.ids) for row in inputs], dtype=np.int64)
        wanted = {signal.name: signal.layers for signal in signals}
        split = pa.repeat(pa.scalar(shard.split), rows.num_rows)
        keys = pa.table({"split": split, "source_row": rows.column("source_row"), "variant": rows.column("variant")})
        with ExitStack() as stack:
            files = [stack.enter_context(layer_file(root, self.record, s, shard.in_folder(s.name))) for s in signals]
            for start, stop in row_groups(length_R, signals):
                some = inputs[start:stop]
                with naming_rows(some, rows.slice(start, stop - start), shard.split):
                    outputs = layer_outputs(self.model, some, wanted, self.max_tokens)
                for signal, write in zip(signals, files, strict=True):
                    part, bases = keys.slice(start, stop - start), self.bases[signal.name]
                    table = signal.table(part, length_R[start:stop], outputs[signal.name], bases)
                    problem = signal.rows_problem(table)
                    if problem:
                        advice = f"remove its folder and take --{signal.name}-codec float32"
                        raise TeacherError(f"{shard.path}: {signal}: {problem}; {advice}")
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
