"""``distill recode`` of a set of examples: what layers say in a smaller codec; no teacher is needed.

All else is the same: the new set shares the files of rows and other signals with the old one, and has its fingerprint.

Shapes: R rows of a row group, T tokens, H hidden size.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.files import make_folder, require_space, write_once
from pipeline.sets.config import RecodeConfig
from pipeline.sets.layer_files import (
    check_same_layers,
    forget_basis,
    forget_lost_files,
    layer_file,
    record_layers,
    share_files,
    unfinished_files,
)
from pipeline.sets.reader import ExampleSet, find_set
from pipeline.sets.record import SetRecord, changed, read_set_record
from pipeline.sets.record_parts import LayersName, Shard
from pipeline.sets.shard_file import read_groups
from pipeline.sets.signals import States
from pipeline.sets.signals.layer_signal import LayerSignal
from pipeline.sets.vector_basis import TOKENS_PER_NUMBER, Basis, bases_to_bytes, fit_basis
from pipeline.sets.vector_codecs import state_codec
from pipeline.sets.verify import require_shards, require_signal_files
from pipeline.sets.writer import start_set
from pipeline.tasks.task import TRAIN

KEPT_WHOLE = ("float32", "float16")


def recode_layers(config: RecodeConfig, command: str) -> SetRecord:
    """Writes the set that ``config`` describes, or goes on with it.

    Raises:
        ConfigError: if what is wanted cannot be made of what is stored.
        FingerprintMismatchError: if there is another set of the new name.
    """
    source, root = (
        ExampleSet.open(find_set(config.set, config.store), config.allow_unverified),
        config.store / config.name,
    )
    if root.resolve() == source.root.resolve():
        raise ConfigError(f"--name {config.name}: that is the set itself; give the new one another name")
    pairs = [_recoded(source, name, codec) for name, codec in config.layer_codecs.items()]
    require_shards(source.root, source.record, source.record.shards)
    require_signal_files(source.root, source.record)
    make_folder(config.store)
    require_space(config.store, sum(shard.bytes or 0 for old, _ in pairs for shard in old.shards))
    base = _base(config, source, command, [old.name for old, _ in pairs])
    record = start_set(root, base, source.tokenizer_json())
    for _, new in pairs:
        check_same_layers(root, new)
    share_files(source.root, root, _hashes(base), _hashes(record))
    require_shards(root, record, record.shards)
    record = forget_lost_files(root, [new.name for _, new in pairs])
    done = [_write(source, root, record, old, new) for old, new in pairs]
    return record_layers(root, read_set_record(root), done)  # which may have forgotten a basis


def _hashes(record: SetRecord) -> dict[str, str]:
    """The SHA-256 of what is in a set's files, by their paths, as far as its record tells."""
    return {shard.path: shard.sha256 for shard in record.shards if shard.sha256} | record.signals.hashes()


def _recoded(source: ExampleSet, name: LayersName, codec: str) -> tuple[LayerSignal, LayerSignal]:
    """A signal as it is stored, and as it is wanted."""
    old = next((signal for signal in source.record.signals.layer_signals if signal.name == name), None)
    if old is None:
        raise ConfigError(f"--{name}-codec: {source.root} has no {name}")
    new = _wanted(old, codec)
    if new is None:
        raise ConfigError(
            f"--{name}-codec {codec}: {source.root} has {name} as {old.how}; of float32 and float16 smaller codecs can "
            "be made, of pca-K one with fewer components"
        )
    return old, new


def _wanted(old: LayerSignal, codec: str) -> LayerSignal | None:
    """A signal in another codec, without its files; None if it cannot be made of what is stored."""
    if not isinstance(old, States):
        is_smaller = (old.how, codec) == ("float32", "u8")
        return old.model_copy(update={"codec": codec, "shards": ()}) if is_smaller else None
    wanted = state_codec(codec, old.codec.width)
    is_prefix = old.codec.name == wanted.name == "pca" and wanted.num_stored < old.codec.num_stored
    is_smaller = old.codec.name in KEPT_WHOLE and wanted.name not in ("float32", old.codec.name)
    bare = {"codec": wanted, "basis_sha256": None, "variance_lost": None, "shards": ()}
    return old.model_copy(update=bare) if is_prefix or is_smaller else None


def _base(config: RecodeConfig, source: ExampleSet, command: str, names: list[str]) -> SetRecord:
    """The record of the new set before its own files are there: a sound one of the old set without these signals."""
    record = source.record
    signals = record.signals.model_copy(update=dict.fromkeys(names))
    note = f"{' and '.join(names)} recoded from {record.name}, made by: {record.command}"
    return changed(record, name=config.name, command=command, signals=signals, notes=(*record.notes, note))


def _write(source: ExampleSet, root: Path, record: SetRecord, old: LayerSignal, new: LayerSignal) -> LayerSignal:
    """Writes the files of a signal that are not there yet, and gives it with the hash of its basis."""
    make_folder(root / new.name)
    recorded = getattr(record.signals, new.name)
    if recorded is not None and recorded.is_stored_as(new):
        new = recorded  # a repeated command goes on with its files
    bases = old.read_bases(source.root)
    if isinstance(old, States) and isinstance(new, States) and new.codec.basis_bytes:
        path = root / new.basis_path
        if not new.has_basis(path):
            forget_basis(root, new)
            write_once(path, bases_to_bytes(_new_bases(source, old, new.codec.num_stored, bases)))
        new = new.with_basis(path)
    new_bases, todo = new.read_bases(root), {shard.range for shard in unfinished_files(root, record, new)}
    with console.progress(len(old.shards), f"recoding {new.name}") as steps:
        for shard in old.shards:
            if shard.range in todo:
                with layer_file(root, record, new, shard) as write:
                    for rows, said in _read(source, old, shard, bases):
                        length_R = rows.column("length").to_numpy().astype(np.int64)
                        keys = rows.select(["split", "source_row", "variant"])
                        write(new.table(keys, length_R, said, new_bases))
            steps.advance()
    return new


def _read(
    source: ExampleSet, old: LayerSignal, shard: Shard, bases: Mapping[int, Basis]
) -> Iterator[tuple[pa.Table, dict[int, list[Floats]]]]:
    """The row groups of a file, with what each layer says in float32."""
    for rows in read_groups(source.root / shard.path):
        problem = old.rows_problem(rows)
        raise_all(IntegrityError, str(source.root / shard.path), [problem] if problem else [])
        length_R = rows.column("length").to_numpy().astype(np.int64)
        said = {layer: old.decode(old.stored_in(rows, layer), length_R, bases.get(layer)) for layer in old.layers}
        yield rows, said


def _new_bases(source: ExampleSet, old: States, num_stored: int, bases: Mapping[int, Basis]) -> dict[str, Basis]:
    """The first components of the bases there are, or bases fitted to training rows, spread evenly."""
    if bases:
        return {f"{layer}.": basis.first(num_stored) for layer, basis in bases.items()}
    split = TRAIN if TRAIN in source.splits else source.splits[0]
    shards = [shard for shard in old.shards if shard.split == split]
    lengths = [pq.read_table(source.root / s.path, columns=["length"], partitioning=None)["length"] for s in shards]
    length_N = np.concatenate([column.to_numpy().astype(np.int64) for column in lengths])
    every = max(1, int(old.tokens(length_N).sum() // (TOKENS_PER_NUMBER * old.codec.width)))
    kept: dict[int, list[Floats]] = {layer: [] for layer in old.layers}
    first = 0
    for shard in shards:
        for rows, said in _read(source, old, shard, {}):
            chosen = range(-first % every, len(rows), every)
            for layer, states in said.items():
                kept[layer] += [states[row].copy() for row in chosen]
            first += len(rows)
    return {f"{layer}.": fit_basis(np.concatenate(states), num_stored) for layer, states in kept.items()}
