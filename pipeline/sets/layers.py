"""Writes the outputs of a teacher's layers into a set file by file, records them, and reads them in batches."""

import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Floats, Ints
from pipeline.errors import (
    ConfigError,
    FingerprintMismatchError,
    IntegrityError,
    did_you_mean,
    raise_all,
    setting_changes,
)
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import atomic_path, link_or_copy, make_folder, remove_temporaries, sha256
from pipeline.parquet import Footer, parquet_writer, read_footer, read_groups, read_metadata
from pipeline.sets.card import write_card_and_record
from pipeline.sets.codecs.vectors import Basis
from pipeline.sets.files import (
    STATISTICS_KEY,
    bytes_problem,
    footer_of,
    is_done,
    measured,
    reading,
    require_sound,
    shard_problem,
)
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, changed, read_set_record, write_set_record
from pipeline.sets.record_parts import LayersName, Shard
from pipeline.sets.signals import LayerSignal, Signals, States
from pipeline.sets.signals.signal import KEY_FIELDS, Numbers, Stored
from pipeline.text.tokenizer import load_tokenizer

EXAMPLE_COLUMNS = ["source_row", "variant", "origin", "ids1", "ids2"]

SMALL = (pa.int8(), pa.uint8())
KEYS = [field.name for field in KEY_FIELDS[1:]]


def unfinished_files(root: Path, record: SetRecord, signal: LayerSignal) -> list[Shard]:
    """Returns the files of a signal to write: missing, incomplete, foreign, or different from the record."""
    shards = signal.shards or tuple(shard.in_folder(signal.name) for shard in record.shards)
    return [shard for shard in shards if not is_done(root, shard, layer_footer(record, signal, shard))]


def check_same_layers(root: Path, signal: LayerSignal) -> None:
    """Raises FingerprintMismatchError if the signal's folder contains files with another encoding."""
    wanted = signal.choices()
    for path in sorted((root / signal.name).glob("*.parquet")):
        try:
            stored = read_footer(path).get("stored", wanted)
        except IntegrityError:
            continue  # a damaged file will be written again
        changes = setting_changes({name: stored.get(name) for name in wanted}, wanted)
        if changes:
            raise FingerprintMismatchError(
                f"{path.parent} holds {signal.name} stored in another way:\n{changes}\nRepeat the command with "
                "its original flags, or remove this folder"
            )


def share_files(source: Path, root: Path, hashes: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    """Adds files of another set under the same paths, as hard links if the file system supports them.

    Other files at these paths, such as damaged copies, are removed first.

    Args:
        source: the folder of the other set, whose files are sound.
        root: the set's folder.
        hashes: the SHA-256 of each shared file, by its path.
        recorded: the SHA-256 in the set's own record. A file that differs from it is not part of the set and is not
            removed.
    """
    for path, digest in hashes.items():
        if (recorded.get(path) or digest) == digest:
            make_folder((root / path).parent)
            here, there = root / path, source / path
            if not here.exists() or not (here.samefile(there) or sha256(here) == digest):
                here.unlink(missing_ok=True)
                link_or_copy(there, here)


def forget_lost_files(root: Path, names: Container[str] | None = None) -> SetRecord:
    """Removes files of layers that do not match a set's record, and their entries in it. Returns the record."""
    record = read_set_record(root)
    known = changed(record, signals=without_lost_layers(root, record.signals, names))
    if known != record:
        write_set_record(root, known)
    return known


def forget_basis(root: Path, signal: States) -> None:
    """Removes a signal's lost basis, and the record's entries of it and of the files written with it.

    A command that is killed before they are rewritten therefore continues with the new basis.
    """
    record = read_set_record(root)
    recorded = getattr(record.signals, signal.name)
    if recorded is not None:
        signals = record.signals.model_copy(update={signal.name: recorded.without_basis()})
        # The record forgets the basis before the file goes: a kill in between must not leave a hash of a missing file.
        write_set_record(root, changed(record, signals=signals))
    (root / signal.basis_path).unlink(missing_ok=True)


@contextmanager
def layer_file(
    root: Path, record: SetRecord, signal: LayerSignal, shard: Shard
) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that writes row groups to a file of a signal. The file appears at the end of the block.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    path = root / shard.path
    with atomic_path(path) as temporary, group_writer(temporary, signal, layer_footer(record, signal, shard)) as write:
        yield write


@contextmanager
def group_writer(path: Path, signal: LayerSignal, footer: Footer) -> Iterator[Callable[[pa.Table], None]]:
    """Writes row groups to a file of a signal. The footer stores how many numbers were clipped."""
    schema = signal.file_schema()
    leaves = {f"{field.name}.list.element": field.type.value_type for field in schema if pa.types.is_list(field.type)}
    # Parquet has no 8-bit type and stores four bytes per number. A dictionary's indices stay at one byte.
    small = [name for name, kind in leaves.items() if kind in SMALL]
    cut_off = rows = 0
    with parquet_writer(
        path,
        schema,
        footer,
        use_dictionary=["split", "variant", *small],
        use_byte_stream_split=[name for name in leaves if name not in small],
        write_statistics=["split", "source_row", "variant"],
    ) as writer:

        def write(table: pa.Table) -> None:
            nonlocal rows, cut_off
            writer.write_table(table)
            rows += table.num_rows
            cut_off += signal.num_cut_off(table)

        yield write
        writer.add_key_value_metadata({STATISTICS_KEY: json.dumps({"rows": rows, "cut_off": cut_off})})


def record_layers(root: Path, record: SetRecord, signals: Iterable[LayerSignal]) -> SetRecord:
    """Adds signals with complete files to the record of a verified set, after checking every row.

    Raises:
        IntegrityError: if a file is damaged.
        DataError: if the folder cannot be written.
    """
    parts: dict[str, LayerSignal] = {}
    for signal in signals:
        # All files are complete at this point, so whatever is temporary belongs to a killed process.
        remove_temporaries(root / signal.name)
        shards = tuple(measured(root, shard.in_folder(signal.name)) for shard in record.shards)
        parts[signal.name] = signal.model_copy(update={"shards": shards})
    recorded = changed(record, signals=record.signals.model_copy(update=parts))
    if recorded == record:
        return record
    # Every number is read back before the record mentions the files, as for the rows of a set.
    check_layers(root, recorded)
    remove_temporaries(root)
    write_card_and_record(root, recorded)
    return recorded


@dataclass(frozen=True)
class LayerStore:
    """The outputs of some layers for the rows of a split.

    Attributes:
        signal: the signal, which describes the encoding.
        source_row_R: int64, ascending. Together with ``variant_R`` it is the key of a row.
        variant_R: int64.
        length_R: int64, the number of tokens that the teacher read of each row.
        stored: the stored numbers by layer, end to end.
        bases: the bases by layer, for a codec that needs them.
    """

    signal: LayerSignal
    source_row_R: Ints
    variant_R: Ints
    length_R: Ints
    stored: Mapping[int, Stored]
    bases: Mapping[int, Basis]

    def __len__(self) -> int:
        return len(self.source_row_R)

    def places(self, source_row_N: Ints, variant_N: Ints) -> Ints:
        """Returns for each key the number of its row here, or -1 for a row without the signal [N]."""
        # A structured type lets searchsorted compare both parts of the key at once.
        key = np.dtype([("row", np.int64), ("variant", np.int64)])
        here, asked = np.empty(len(self), key), np.empty(len(source_row_N), key)
        here["row"], here["variant"] = self.source_row_R, self.variant_R
        asked["row"], asked["variant"] = source_row_N, variant_N
        if not len(here):
            return np.full(len(asked), -1)
        # A key beyond the last one would index outside. The comparison below rejects it.
        place_N = np.searchsorted(here, asked).clip(max=len(here) - 1)
        return np.where(here[place_N] == asked, place_N, -1)

    def rows(self, layer: int, place_B: Ints, most_tokens: int | None = None) -> list[Floats]:
        """The outputs of a layer for rows, one float32 array per row.

        Args:
            layer: its number.
            place_B: numbers of rows, as `places` returns them, without -1.
            most_tokens: read only so many first tokens of ``states``. Default: all.

        Returns: Arrays of [L, H] for ``states``, [1, H] for ``cls``, [A, L, L] for ``attention`` and ``values``.
        """
        stored, length_B = self.stored[layer], self.length_R[place_B]
        length_B = length_B if most_tokens is None else length_B.clip(max=most_tokens)
        sizes_B = self.signal.sizes(length_B)
        batch = {
            end: _taken(stored[end], (np.cumsum(size_R) - size_R)[place_B], sizes_B[end])
            for end, size_R in self.signal.sizes(self.length_R).items()
        }
        return self.signal.decode(batch, length_B, self.bases.get(layer))

    def tokens(self, layer: int, place_B: Ints) -> tuple[Floats, Ints]:
        """Returns the states of a layer of rows, token after token: [T, H] of float32, and their offsets [B + 1].

        Only for ``states`` and ``cls``. See `rows`.
        """
        rows = self.rows(layer, place_B)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
        return np.concatenate(rows), offsets


def open_layers(logit_set: ExampleSet, name: LayersName, split: str, layers: tuple[int, ...] = ()) -> LayerStore:
    """Reads the outputs of some layers, or of all stored ones, for the rows of a split after checking its files.

    Raises:
        ConfigError: if the set lacks the signal, the split or a layer.
        IntegrityError: if a file is missing or was changed, or its rows are impossible.
    """
    root, record = logit_set.root, logit_set.record
    logit_set.check_split(split)
    signal = next((signal for signal in record.signals.layer_signals if signal.name == name), None)
    if signal is None:
        raise ConfigError(f"{root}: has no {name}. Repeat `{record.command}` with --keep {name}=LAYERS.")
    missing = [str(layer) for layer in layers if layer not in signal.layers]
    if missing:
        stored = [str(layer) for layer in signal.layers]
        raise ConfigError(f"{root}: no {name} of layer {missing[0]}. {did_you_mean(missing[0], stored)}")
    wanted = signal.model_copy(update={"layers": layers or signal.layers})
    keys = [np.empty((len(KEYS), 0), dtype=np.int64)]
    nothing = wanted.file_schema().empty_table()
    parts = {layer: [wanted.stored_in(nothing, layer)] for layer in wanted.layers}
    specials = num_specials(root, record)
    for number in (number for number, shard in enumerate(signal.shards) if shard.split == split):
        for rows in sound_rows(root, record, signal, number, specials, wanted.layers):
            keys.append(np.stack([rows.column(column).to_numpy().astype(np.int64) for column in KEYS]))
            for layer, found in parts.items():
                found.append(wanted.stored_in(rows, layer))
    stored_of = {
        layer: {end: np.concatenate([part[end] for part in found]) for end in found[0]}
        for layer, found in parts.items()
    }
    source_row_R, variant_R, length_R = np.concatenate(keys, axis=1)
    return LayerStore(wanted, source_row_R, variant_R, length_R, stored_of, signal.read_bases(root))


def _taken(flat: Numbers, start_B: Ints, size_B: Ints) -> Numbers:
    """Returns so many numbers from each start, end to end."""
    first_B = np.cumsum(size_B) - size_B
    taken: Numbers = flat[np.repeat(start_B - first_B, size_B) + np.arange(size_B.sum())]
    return taken


def without_lost_layers(root: Path, signals: Signals, names: Container[str] | None = None) -> Signals:
    """Removes files of layers that do not match the record, and their checksums, because rewritten files may differ."""
    parts: dict[str, LayerSignal] = {}
    for signal in (one for one in signals.layer_signals if names is None or one.name in names):
        lost = {shard.path for shard in signal.shards if shard.sha256 and bytes_problem(root / shard.path, shard)}
        for path in lost:
            # The file has to go: its footer may be right although its bytes are not, and then it would count as done.
            (root / path).unlink(missing_ok=True)
        shards = tuple(shard.unmeasured() if shard.path in lost else shard for shard in signal.shards)
        parts[signal.name] = signal.model_copy(update={"shards": shards})
    return signals.model_copy(update=parts)


def layer_footer(record: SetRecord, signal: LayerSignal, shard: Shard) -> Footer:
    """Returns the content of the footer of a signal's file: its rows, and the encoding of the signal."""
    return footer_of(record, shard) | {"signal": signal.name, "stored": signal.stored_as()}


def check_layers(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError, listing what is wrong, unless the layer outputs match the record.

    While the set's rows are being verified, files may be missing because they are written later.
    """
    if not record.signals.layer_signals:
        return
    specials, problems = num_specials(root, record), []
    for signal in record.signals.layer_signals:
        for number, shard in enumerate(signal.shards):
            if record.state == "complete" and shard.sha256 is None:
                continue
            try:
                for _ in sound_rows(root, record, signal, number, specials):
                    pass
            except IntegrityError as error:
                problems.append(str(error).removeprefix(f"{root}/"))
    raise_all(IntegrityError, "the layer outputs are damaged", problems)


def layer_file_problems(root: Path, record: SetRecord, signals: Iterable[LayerSignal]) -> list[str]:
    """Returns the problems of the files and bases of signals, without their rows."""
    problems = []
    for signal in signals:
        try:
            signal.check_files(root)
        except IntegrityError as error:
            problems.append(str(error).removeprefix(f"{root}/"))
        for shard in signal.shards:
            problem = shard_problem(root, shard, signal.file_schema(), layer_footer(record, signal, shard))
            problems += [f"{shard.path}: {problem}"] if problem else []
    return problems


def num_specials(root: Path, record: SetRecord) -> int:
    """Returns how many special tokens the teacher of a set adds to a row."""
    tokenizer = load_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256)
    return int(tokenizer.num_special_tokens_to_add(record.is_pair))


def sound_rows(
    root: Path, record: SetRecord, signal: LayerSignal, number: int, specials: int, layers: tuple[int, ...] = ()
) -> Iterator[pa.Table]:
    """Yields the row groups of a signal's file, each after a check against the record and the examples.

    Raises:
        IntegrityError: at the first problem.
    """
    shard, examples = signal.shards[number], record.shards[number]
    path, wanted = root / shard.path, signal.model_copy(update={"layers": layers or signal.layers})
    require_sound(path, shard_problem(root, shard, signal.file_schema(), layer_footer(record, signal, shard)))
    expected = expected_rows(root / examples.path, signal, specials)
    # The footer's counts are compared before any number is read, so that a hostile file cannot fill the memory.
    require_sound(path, _counts_problem(path, wanted, expected.column("length").to_numpy()))
    start = 0
    with reading(path):
        for rows in read_groups(path, wanted.file_schema().names):
            part = expected.slice(start, rows.num_rows)
            for name in part.column_names:
                if not np.array_equal(rows.column(name).to_numpy(), part.column(name).to_numpy()):
                    require_sound(path, f"its column {name} does not match the rows in examples/")
            require_sound(path, wanted.rows_problem(rows))
            start += rows.num_rows
            yield rows


def expected_rows(examples: Path, signal: LayerSignal, specials: int) -> pa.Table:
    """Returns ``source_row``, ``variant`` and ``length`` of the rows with a signal in a shard of examples.

    Raises:
        IntegrityError: if the shard is missing or lacks a column.
    """
    with reading(examples):
        rows = pq.read_table(examples, columns=EXAMPLE_COLUMNS, partitioning=None)
    if signal.of == "originals":
        rows = rows.filter(pc.equal(rows.column("origin"), "original"))
    lengths = [pc.fill_null(pc.list_value_length(rows.column(name)), 0).to_numpy() for name in ("ids1", "ids2")]
    length_R = np.add(*lengths).astype(np.int64) + specials
    return rows.select(["source_row", "variant"]).append_column("length", pa.array(length_R))


def _counts_problem(path: Path, signal: LayerSignal, length_R: Ints) -> str | None:
    """Returns the problem of the footer's counts of rows and numbers, for rows of these lengths."""
    metadata, start = read_metadata(path), 0
    if metadata.num_rows != len(length_R):
        return f"{metadata.num_rows:,} rows, but examples/ has {len(length_R):,} of them"
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        counted = {column.path_in_schema.split(".")[0]: column.num_values for column in columns}
        sizes = signal.sizes(length_R[start : start + group.num_rows])
        for layer, (end, size_R) in itertools.product(signal.layers, sizes.items()):
            name = f"{signal.name}_{layer}{end}"
            if counted[name] != size_R.sum():
                return f"{name} has {counted[name]:,} numbers, but rows of these lengths have {size_R.sum():,}"
        start += group.num_rows
    return None
