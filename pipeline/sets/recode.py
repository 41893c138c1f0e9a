"""``distill recode``: writes a set of masked words, or the stored layers of a set of examples, in another codec.

No teacher is needed. Masked words are recoded from a lossless codec, layers from larger codecs to smaller ones.

Shapes: P positions, V vocabulary, R rows of a row group, T tokens, H hidden size.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, DataError, IntegrityError, raise_all
from pipeline.files import make_folder, require_space, write_once
from pipeline.parquet import read_groups
from pipeline.sets.codec_text import parse_recoded
from pipeline.sets.codecs import CODECS, AnyCodec, BeyondHalfError, Codec, Decoder, Predictions, codec_for
from pipeline.sets.codecs.vectors import TOKENS_PER_NUMBER, Basis, bases_to_bytes, fit_basis, vector_codec
from pipeline.sets.files import Statistics, require_shards
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import (
    MaskedWordSet,
    draws,
    encode,
    no_statistics,
    rows_per_group,
    split_table,
    tokens_table,
)
from pipeline.sets.layers import (
    check_same_layers,
    forget_basis,
    forget_lost_files,
    layer_file,
    record_layers,
    share_files,
    unfinished_files,
)
from pipeline.sets.open import find_set
from pipeline.sets.record import SetRecord, changed, read_set_record, staged
from pipeline.sets.record_parts import MAX_COUNT, LayersName, Shard
from pipeline.sets.set_settings import RecodeSettings
from pipeline.sets.signals import Mlm, Signals, States
from pipeline.sets.signals.signal import LayerSignal
from pipeline.sets.verify import require_signal_files
from pipeline.sets.write import complete_and_verify, shards_to_write, start_set, write_shard
from pipeline.tasks.task import TRAIN

POSITIONS_AT_ONCE = 512
KEPT_WHOLE = ("float32", "float16")


def recode(settings: RecodeSettings, command: str) -> SetRecord:
    """Writes the set that ``settings`` describe, or resumes it.

    Raises:
        ConfigError: if the requested codecs cannot be made from the stored ones.
        DataError: if a number of it is too large for the codec.
        FingerprintMismatchError: if the new name belongs to another set.
    """
    path, root = find_set(settings.set, settings.store), settings.store / str(settings.name)
    codecs = parse_recoded(settings.codec)
    if codecs:
        return _recode_layers(ExampleSet.open(path, settings.allow_unverified), codecs, root, command)
    return _recode_words(MaskedWordSet.open(path, settings.allow_unverified), settings.codec, root, command)


def _recode_words(source: MaskedWordSet, text: str, root: Path, command: str) -> SetRecord:
    require_everything(source)
    codec = codec_for(text, source.record.codec.vocabulary_size, None)
    positions = min(MAX_COUNT, sum(scores.get("positions", 0) for scores in source.record.scores.values()))
    make_folder(root.parent)
    require_space(root.parent, int(positions * codec.num_bytes()))
    record = source.record
    planned = staged(
        # A recoded set must not share a fingerprint with a dump in that codec: its numbers went through float16.
        record.settings | {"codec": str(codec), "recoded_from": record.fingerprint},
        command,
        base=record,
        name=root.name,
        signals=Signals(mlm=Mlm(codec=codec)),
        notes=(*record.notes, f"recoded from a set with codec {record.codec}, made by: {record.command}"),
    )
    started = start_set(root, planned, source.tokenizer_json())
    record, unfinished = shards_to_write(root, started)
    todo = {shard.path for shard in unfinished}
    decoder = source.decoder()
    with console.progress(len(record.shards), "recoding") as steps:
        for shard, new in zip(source.record.shards, record.shards, strict=True):
            if new.path in todo:
                statistics = no_statistics()
                groups = recoded_groups(source, shard, codec, decoder, statistics)
                try:
                    write_shard(root, record, new, groups, statistics)
                except BeyondHalfError as error:
                    raise DataError(f"{source.root / shard.path}, codec {codec}: {error}") from error
            steps.advance()
    return complete_and_verify(root, record)


def recoded_groups(
    source: MaskedWordSet, shard: Shard, codec: AnyCodec, decoder: Decoder | None, statistics: Statistics
) -> Iterator[pa.Table]:
    """The row groups of a shard in another codec."""
    for table in source.read_shard(shard):
        for start in range(0, table.num_rows, rows_per_group(codec)):
            part = table.slice(start, rows_per_group(codec))
            stored = stored_predictions(source, part, decoder, POSITIONS_AT_ONCE)
            pieces = [encode(codec, predictions, target_P, statistics) for predictions, target_P in stored]
            yield encoded_table(codec, shard.split, part, pieces)


def stored_predictions(
    source: MaskedWordSet, table: pa.Table, decoder: Decoder | None, at_once: int
) -> Iterator[tuple[Predictions, torch.Tensor]]:
    """Yields the teacher's predictions in a table of masked words, and the masked tokens, some positions at a time."""
    rows, columns = split_table(table)
    # The draws depend on the keys alone, so recoding gives the same samples as a dump with this codec would.
    random_P, target_P = torch.from_numpy(draws(rows, source.record.mask_seed)), torch.from_numpy(rows.targets.flat)
    for low in range(0, len(target_P), at_once):
        stored = {name: column[low : low + at_once] for name, column in columns.items()}
        part = slice(low, low + at_once)
        yield source.record.codec.predictions(stored, decoder, random_P[part]), target_P[part]


def encoded_table(codec: Codec, split: str, table: pa.Table, pieces: Sequence[Mapping[str, pa.Array]]) -> pa.Table:
    """Returns the rows of a table with the columns of another codec, which are encoded piece by piece."""
    whole = {name: pa.concat_arrays([piece[name] for piece in pieces]) for name in pieces[0]}
    return tokens_table(codec, split, split_table(table)[0], whole)


def require_everything(source: MaskedWordSet) -> None:
    """Raises ConfigError unless the codec of a set is lossless."""
    if not source.record.codec.is_lossless:
        keeping = " and ".join(name for name, codec in reversed(CODECS.items()) if codec.is_lossless)
        raise ConfigError(
            f"{source.root}: codec {str(source.record.codec)!r} does not store the full distribution. Only {keeping} do"
        )


def _recode_layers(source: ExampleSet, codecs: Mapping[LayersName, str], root: Path, command: str) -> SetRecord:
    if root.resolve() == source.root.resolve():
        raise ConfigError(f"--name {root.name}: is the name of the source. Choose another one.")
    pairs = [_recoded(source, name, codec) for name, codec in codecs.items()]
    require_shards(source.root, source.record, source.record.shards)
    require_signal_files(source.root, source.record)
    make_folder(root.parent)
    require_space(root.parent, sum(shard.bytes or 0 for old, _ in pairs for shard in old.shards))
    names = [old.name for old, _ in pairs]
    # The record before the set's own files exist: that of the old set without these signals.
    base = changed(
        source.record,
        name=root.name,
        command=command,
        signals=source.record.signals.model_copy(update=dict.fromkeys(names)),
        notes=(
            *source.record.notes,
            f"{' and '.join(names)} recoded from {source.record.name}, made by: {source.record.command}",
        ),
    )
    record = start_set(root, base, source.tokenizer_json())
    for _, new in pairs:
        check_same_layers(root, new)
    share_files(source.root, root, _hashes(base), _hashes(record))
    require_shards(root, record, record.shards)
    record = forget_lost_files(root, names)
    done = [_write(source, root, record, old, new) for old, new in pairs]
    # Read again, because writing may have removed a basis.
    return record_layers(root, read_set_record(root), done)


def _hashes(record: SetRecord) -> dict[str, str]:
    return {shard.path: shard.sha256 for shard in record.shards if shard.sha256} | record.signals.hashes()


def _recoded(source: ExampleSet, name: LayersName, codec: str) -> tuple[LayerSignal, LayerSignal]:
    """A signal in its stored codec and in the requested one."""
    old = next((signal for signal in source.record.signals.layer_signals if signal.name == name), None)
    if old is None:
        raise ConfigError(f"--codec {name}={codec}: {source.root} has no {name}")
    new = _wanted(old, codec)
    if new is None:
        raise ConfigError(
            f"--codec {name}={codec}: {source.root} has {name} as {old.how}. float32 and float16 can be "
            "converted to smaller codecs, and pca-K to fewer components"
        )
    return old, new


def _wanted(old: LayerSignal, codec: str) -> LayerSignal | None:
    """Returns a signal in another codec, without files, or None if it cannot be made from the stored one."""
    if not isinstance(old, States):
        is_smaller = (old.how, codec) == ("float32", "u8")
        return old.model_copy(update={"codec": codec, "shards": ()}) if is_smaller else None
    # Only from larger to smaller: recoding a lossy codec again would add up errors that no record mentions.
    wanted = vector_codec(codec, old.codec.width)
    is_prefix = old.codec.name == wanted.name == "pca" and wanted.num_stored < old.codec.num_stored
    is_smaller = old.codec.name in KEPT_WHOLE and wanted.name not in ("float32", old.codec.name)
    bare = {"codec": wanted, "basis_sha256": None, "variance_lost": None, "shards": ()}
    return old.model_copy(update=bare) if is_prefix or is_smaller else None


def _write(source: ExampleSet, root: Path, record: SetRecord, old: LayerSignal, new: LayerSignal) -> LayerSignal:
    """Writes the missing files of a signal, and returns the signal with the hash of its basis."""
    make_folder(root / new.name)
    recorded = getattr(record.signals, new.name)
    if recorded is not None and recorded.is_stored_as(new):
        new = recorded  # a repeated command continues with the recorded files
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
                    for rows, outputs in read_outputs(source, old, shard, bases):
                        length_R = rows.column("length").to_numpy().astype(np.int64)
                        keys = rows.select(["split", "source_row", "variant"])
                        write(new.table(keys, length_R, outputs, new_bases))
            steps.advance()
    return new


def read_outputs(
    source: ExampleSet, old: LayerSignal, shard: Shard, bases: Mapping[int, Basis]
) -> Iterator[tuple[pa.Table, dict[int, list[Floats]]]]:
    """Yields the row groups of a file, with each layer's outputs in float32."""
    for rows in read_groups(source.root / shard.path, old.file_schema().names):
        problem = old.rows_problem(rows)
        raise_all(IntegrityError, str(source.root / shard.path), [problem] if problem else [])
        length_R = rows.column("length").to_numpy().astype(np.int64)
        outputs = {layer: old.decode(old.stored_in(rows, layer), length_R, bases.get(layer)) for layer in old.layers}
        yield rows, outputs


def training_files(source: ExampleSet, old: LayerSignal) -> list[Shard]:
    """Returns the files of a signal for the training rows, or for the first split without them."""
    split = TRAIN if TRAIN in source.splits else source.splits[0]
    return [shard for shard in old.shards if shard.split == split]


def spread_outputs(
    source: ExampleSet, old: LayerSignal, every: int, bases: Mapping[int, Basis]
) -> tuple[Ints, dict[int, list[Floats]]]:
    """Returns every n-th training row's number of tokens, and its outputs by layer."""
    # Over all files: the first ones could contain only one topic or one length.
    kept: dict[int, list[Floats]] = {layer: [] for layer in old.layers}
    lengths, first = [], 0
    for shard in training_files(source, old):
        for rows, outputs in read_outputs(source, old, shard, bases):
            chosen = range(-first % every, len(rows), every)
            lengths.append(rows.column("length").to_numpy().astype(np.int64)[list(chosen)])
            for layer, blocks in outputs.items():
                # Copies, because a view would keep the whole row group in memory.
                kept[layer] += [blocks[row].copy() for row in chosen]
            first += len(rows)
    return np.concatenate(lengths), kept


def _new_bases(source: ExampleSet, old: States, num_stored: int, bases: Mapping[int, Basis]) -> dict[str, Basis]:
    """Returns the first components of existing bases, or bases fitted to evenly spread training rows."""
    if bases:
        return {f"{layer}.": basis.first(num_stored) for layer, basis in bases.items()}
    files = [source.root / shard.path for shard in training_files(source, old)]
    lengths = [pq.read_table(path, columns=["length"], partitioning=None)["length"].to_numpy() for path in files]
    length_N = np.concatenate(lengths).astype(np.int64)
    every = max(1, int(old.tokens(length_N).sum() // (TOKENS_PER_NUMBER * old.codec.width)))
    _, states = spread_outputs(source, old, every, {})
    return {f"{layer}.": fit_basis(np.concatenate(rows), num_stored) for layer, rows in states.items()}
