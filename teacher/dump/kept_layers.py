"""Adds the outputs of a teacher's layers to a set, in separate files.

Every process and job writes its share of the files, as with the shards of rows. Each file belongs to one shard of rows
and has its fingerprint, so layers can be added to a finished set without computing logits again.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import console
from pipeline.arrays import Ints
from pipeline.errors import IntegrityError, TeacherError
from pipeline.files import make_folder, write_once
from pipeline.interrupts import stop_between
from pipeline.sets.codec_text import Kept
from pipeline.sets.codecs.vectors import TOKENS_PER_NUMBER, Basis, bases_to_bytes, fit_basis, vector_codec
from pipeline.sets.layers import (
    check_same_layers,
    forget_basis,
    forget_lost_files,
    layer_file,
    record_layers,
    share_files,
    unfinished_files,
)
from pipeline.sets.open import LogitSet
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record
from pipeline.sets.record_parts import LayerRows, LayersName, Range, Shard
from pipeline.sets.signals import Attention, Cls, LayerSignal, States, Values
from pipeline.sources import Source, sentences
from pipeline.tasks.task import TRAIN
from pipeline.text.tokenizer import Tokenized
from teacher.dump.driver import Executor
from teacher.dump.rows import HeldRows, Rows
from teacher.dump.shard_jobs import ShardJob
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher
from teacher.models.layer_outputs import layer_outputs, require_known_family
from teacher.models.loaded import inference_mode

LAYER_SIGNALS: tuple[type[LayerSignal], ...] = (States, Cls, Attention, Values)


def planned_layers(wanted: Sequence[LayerSignal], root: Path) -> tuple[LayerSignal, ...]:
    """Returns the requested signals, and those that the set in ``root`` already has."""
    planned = {signal.name: signal for signal in wanted}
    for signal in read_set_record(root).signals.layer_signals if (root / FILE_NAME).exists() else ():
        if signal.name not in planned or planned[signal.name].is_stored_as(signal):
            planned[signal.name] = signal
    for signal in planned.values():
        check_same_layers(root, signal)
    return tuple(planned.values())


def wanted_layers(kept: Sequence[Kept], of: LayerRows, name: str, shape: Any) -> list[LayerSignal]:
    """Returns the signals that ``--keep`` requests, for a teacher with this name and transformers config.

    Raises:
        ConfigError: if the teacher lacks these layers, or has fewer numbers.
        TeacherError: if layers of this type of teacher are not supported.
    """
    if kept:
        require_known_family(name, shape.model_type)
    signals: list[LayerSignal] = []
    # In the order of the record, whatever the order of the text: a set's files do not depend on it.
    for signal in LAYER_SIGNALS:
        for one in (one for one in kept if one.name == signal.name):
            layers = one.numbers(int(shape.num_hidden_layers))
            how: dict[str, Any] = {"heads": int(shape.num_attention_heads), "codec": one.codec}
            if issubclass(signal, States):
                how = {"codec": vector_codec(one.codec, int(shape.hidden_size))}
            signals.append(signal(layers=layers, of=of, **how))
    return signals


def add_layers(
    root: Path,
    planned: Sequence[LayerSignal],
    teacher: Teacher,
    rows: Rows,
    precision: str,
    max_tokens: int,
    old: LogitSet | None,
    executor: Executor,
) -> SetRecord | None:
    """Writes this process's share of the layer outputs, and records them if that was the last share.

    Call it in every process of a command, after the set in ``root`` was started.

    Returns: The record on disk. None on other ranks than the first.

    Raises:
        TeacherError: if a number is not finite, or too large for its codec.
    """
    record = read_set_record(root)
    for signal in planned:
        # In every process: on network file systems another machine's new folder may not be visible yet.
        make_folder(root / signal.name)
        if executor.is_main:
            _take_over(root, record, signal, old)
    executor.wait()
    with inference_mode(teacher.model.device, precision):
        signals = with_bases(root, planned, teacher, rows.source, record.max_seq_length, max_tokens, executor)
    missing = {signal.name: {file.range for file in unfinished_files(root, record, signal)} for signal in signals}
    # No process writes before all have looked. Otherwise the shares would differ.
    executor.wait()
    if executor.is_main and any(missing.values()):
        forget_lost_files(root)
    executor.wait()
    of_job = record.shards[executor.job.index :: executor.job.count]
    mine = executor.share([shard for shard in of_job if shard.range in set().union(*missing.values())])
    if mine:
        bases = {signal.name: signal.read_bases(root) for signal in signals}
        job = LayerJob(record, teacher, precision, max_tokens, signals, bases, missing)
        executor.run(job, root, rows, mine)
    executor.wait()
    if not executor.is_main:
        return None
    record = read_set_record(root)
    # Files that did not match the record have been removed by now, so the footers of the others decide.
    unmeasured = [signal.model_copy(update={"shards": ()}) for signal in signals]
    left = sum(len(unfinished_files(root, record, signal)) for signal in unmeasured)
    if left:
        console.note(f"other jobs have to write {left} files of layers")
    return record if left or record.state != "verified" else record_layers(root, record, signals)


def _take_over(root: Path, record: SetRecord, signal: LayerSignal, old: LogitSet | None) -> None:
    """Adds files of an old version with their basis, as hard links if the file system supports them."""
    theirs = getattr(old.record.signals, signal.name) if old is not None else None
    if old is None or theirs is None or not theirs.is_stored_as(signal):
        return
    shared = {shard.in_folder(signal.name).path for shard in record.shards if shard.version}
    not_shared = {shard.path for shard in theirs.shards} - shared
    hashes = {path: digest for path, digest in theirs.hashes().items() if path not in not_shared}
    share_files(old.root, root, hashes, signal.hashes())


# Sample size for `cls`, which has one vector per row.
CLS_ROWS = 4096


def with_bases(
    root: Path,
    signals: Sequence[LayerSignal],
    teacher: Teacher,
    source: Source,
    max_seq_length: int,
    max_tokens: int,
    executor: Executor,
) -> tuple[LayerSignal, ...]:
    """Returns the signals with the record entries of their bases, after adding these to the set in ``root``."""
    needing = [signal for signal in signals if isinstance(signal, States) and signal.codec.basis_bytes]
    if executor.is_main:
        for signal in needing:
            if _is_there(root, signal):
                continue
            inputs = _sample(signal, teacher, source, max_seq_length, TOKENS_PER_NUMBER * signal.codec.width)
            with console.progress(len(inputs), f"teacher: basis of {signal.name}") as steps:
                wanted = {signal.name: signal.layers}
                outputs = layer_outputs(teacher, inputs, wanted, max_tokens, steps.advance)[signal.name]
            num_stored = signal.codec.num_stored
            bases = {f"{layer}.": fit_basis(np.concatenate(states), num_stored) for layer, states in outputs.items()}
            # The first of several jobs wins: all files of a signal have to be encoded with the same basis.
            write_once(root / signal.basis_path, bases_to_bytes(bases))
    executor.wait()
    found = {signal.name: signal.with_basis(root / signal.basis_path) for signal in needing}
    return tuple(found.get(signal.name, signal) for signal in signals)


def _is_there(root: Path, signal: States) -> bool:
    """Whether the set has the basis. A basis that differs from the record, or without files, is removed."""
    path = root / signal.basis_path
    if not signal.has_basis(path):
        forget_basis(root, signal)
        return False
    try:
        signal.bases_in(path)
    except IntegrityError:
        # Files were encoded with the damaged basis. A new one would decode them to other numbers, so a person has to
        # decide.
        if any(path.parent.glob("*.parquet")):
            raise
        path.unlink()
        return False
    return True


def _sample(signal: States, teacher: Teacher, source: Source, max_seq_length: int, wanted: int) -> list[Tokenized]:
    """Returns evenly spread training rows with about so many tokens, or all rows."""
    rows = source.own(TRAIN if TRAIN in source.splits else next(iter(source.splits)))
    count = CLS_ROWS if isinstance(signal, Cls) else -(-wanted // max_seq_length)
    while True:
        count = min(count, rows.num_rows)
        places = np.linspace(0, rows.num_rows - 1, count).astype(np.int64)
        inputs = list(teacher.reader.tokenize(*sentences(rows.take(pa.array(places))), max_seq_length))
        tokens = sum(len(row.ids) for row in inputs)
        if isinstance(signal, Cls) or tokens >= wanted or count == rows.num_rows:
            return inputs
        # The average length is known now, so the second try usually suffices.
        count = int(1.1 * count * wanted / tokens) + 1


STORED_AT_ONCE = 48 * 2**20  # bytes of a row group, with a margin to 64 MiB
# Bytes of float32 outputs that are in memory while a row group is made.
SAID_AT_ONCE = 2**28


@dataclass(frozen=True)
class LayerJob(ShardJob):
    """Writes the files of signals for the rows of shards, in one pass of the teacher over these rows.

    Attributes:
        signals: the signals to write, with the hashes of their bases.
        bases: the bases by layer, for signals that need them.
        missing: the ranges of rows of the files to write, by signal.
    """

    model: Teacher
    signals: Sequence[LayerSignal]
    bases: Mapping[LayersName, Mapping[int, Basis]]
    missing: Mapping[LayersName, AbstractSet[Range]]

    @property
    def folders(self) -> tuple[LayersName, ...]:
        return tuple(self.missing)

    def write(self, root: Path, rows: Rows | HeldRows, shards: Sequence[Shard]) -> None:
        """Writes the files of shards. Raises TeacherError if a number is not finite, or too large for its codec."""
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
                        advice = f"Remove its folder and use the codec float32 (--keep {signal.name}=LAYERS:float32)"
                        raise TeacherError(f"{shard.path}: {signal}: {problem}. {advice}")
                    write(table)


def row_groups(length_R: Ints, signals: Sequence[LayerSignal]) -> Iterator[tuple[int, int]]:
    """Returns the ends of row groups for rows with so many tokens, which bound their memory and their stored size."""
    said_R = sum((len(s.layers) * s.num_floats(length_R) for s in signals), np.zeros_like(length_R))
    stored = [len(signal.layers) * signal.stored_bytes(length_R) for signal in signals]
    # The share of the tightest limit that each row uses. A group is full when its shares sum to 1.
    share_R = np.max([4 * said_R / SAID_AT_ONCE, *(size_R / STORED_AT_ONCE for size_R in stored)], axis=0)
    start = 0
    while start < len(length_R):
        fitting = int(np.searchsorted(np.cumsum(share_R[start:]), 1, side="right"))
        # A single row above the limits forms its own group. Otherwise the loop would not end.
        stop = start + max(1, fitting)
        yield start, stop
        start = stop
