"""Writing what a teacher's layers say into a set: its files one by one, then its line in the record."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipeline.errors import FingerprintMismatchError, IntegrityError, setting_changes, short
from pipeline.files import atomic_path, link_or_copy, make_folder, remove_temporaries, sha256
from pipeline.parquet import Footer, parquet_writer, read_footer
from pipeline.sets.card import write_card_and_record
from pipeline.sets.record import SetRecord, changed, read_set_record, write_set_record
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import STATISTICS_KEY
from pipeline.sets.signals import LayerSignal, States
from pipeline.sets.verify_layers import check_layers, layer_footer
from pipeline.sets.writer import is_done, measured, without_lost_layers

SMALL = (pa.int8(), pa.uint8())


def unfinished_files(root: Path, record: SetRecord, signal: LayerSignal) -> list[Shard]:
    """The files of a signal that are still to be written: missing, torn, foreign, or not what was recorded."""
    shards = signal.shards or tuple(shard.in_folder(signal.name) for shard in record.shards)
    return [shard for shard in shards if not is_done(root, shard, layer_footer(record, signal, shard))]


def check_same_layers(root: Path, signal: LayerSignal) -> None:
    """Raises FingerprintMismatchError if the signal's folder in a set holds files that are stored in another way."""
    wanted = signal.choices()
    for path in sorted((root / signal.name).glob("*.parquet")):
        try:
            stored = read_footer(path).get("stored", wanted)
        except IntegrityError:
            continue  # it is written anew
        changes = setting_changes({name: stored.get(name) for name in wanted}, wanted, short)
        if changes:
            raise FingerprintMismatchError(
                f"{path.parent} holds {signal.name} stored in another way:\n{changes}\n"
                "Repeat the command with the flags that they were begun with, or remove this folder"
            )


def share_files(source: Path, root: Path, hashes: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    """Gives a set files of another one under the same paths, as links where the file system has them.

    What else lies there, as a damaged copy, goes first.

    Args:
        source: the other set's folder, whose files are sound.
        root: the set's folder.
        hashes: the SHA-256 of each file that is shared, by its path.
        recorded: the same of what the set's own record tells of; a file of which that says otherwise is its own, and
            stays.
    """
    for path, digest in hashes.items():
        if (recorded.get(path) or digest) == digest:
            make_folder((root / path).parent)
            if not _has_content(root / path, source / path, digest):
                (root / path).unlink(missing_ok=True)
                link_or_copy(source / path, root / path)


def _has_content(path: Path, source: Path, digest: str) -> bool:
    """Whether a file is there, and is the source itself by another name, or one with its SHA-256."""
    return path.exists() and (path.samefile(source) or sha256(path) == digest)


def forget_lost_files(root: Path, names: Container[str] | None = None) -> SetRecord:
    """Removes files of layers that are not what a set's record says, and their lines in it, which it gives.

    Args:
        root: the set's folder.
        names: the signals that are looked at. (default: all)
    """
    record = read_set_record(root)
    known = changed(record, signals=without_lost_layers(root, record.signals, names))
    if known != record:
        write_set_record(root, known)
    return known


def forget_basis(root: Path, signal: States) -> None:
    """Removes a signal's lost basis, and what the set's record says of it and of the files written with it.

    So a command that is killed before these are written anew goes on with the new basis.
    """
    record = read_set_record(root)
    recorded = getattr(record.signals, signal.name)
    if recorded is not None:
        signals = record.signals.model_copy(update={signal.name: recorded.without_basis()})
        write_set_record(root, changed(record, signals=signals))
    (root / signal.basis_path).unlink(missing_ok=True)


@contextmanager
def layer_file(
    root: Path, record: SetRecord, signal: LayerSignal, shard: Shard
) -> Iterator[Callable[[pa.Table], None]]:
    """What writes row groups, one by one, to a file of a signal, which is there at the end of the block or not at all.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    path = root / shard.path
    with (
        atomic_path(path) as temporary,
        group_writer(temporary, signal, layer_footer(record, signal, shard)) as write,
    ):
        yield write


@contextmanager
def group_writer(path: Path, signal: LayerSignal, footer: Footer) -> Iterator[Callable[[pa.Table], None]]:
    """What writes row groups to a file of a signal; its footer tells how many numbers were cut off."""
    schema = signal.file_schema()
    leaves = {f"{field.name}.list.element": field.type.value_type for field in schema if pa.types.is_list(field.type)}
    small = [name for name, kind in leaves.items() if kind in SMALL]  # Parquet widens them; a dictionary does not
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
    """Puts signals, all files of which are there, into the record of a verified set, once every row was looked at.

    Raises:
        IntegrityError: if a file is not sound.
        DataError: if the folder cannot be written.
    """
    parts: dict[str, LayerSignal] = {}
    for signal in signals:
        remove_temporaries(root / signal.name)
        shards = tuple(measured(root, shard.in_folder(signal.name)) for shard in record.shards)
        parts[signal.name] = signal.model_copy(update={"shards": shards})
    recorded = changed(record, signals=record.signals.model_copy(update=parts))
    if recorded == record:
        return record
    check_layers(root, recorded)
    remove_temporaries(root)
    write_card_and_record(root, recorded)
    return recorded
