"""``teacher-dump --extend``: writes a new version of a set that reuses the old version's files and logits.

Files whose rows have the same texts and gold labels at the same places are reused unchanged. Of the other rows, the
teacher reads only texts that the old set does not contain.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import console
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, raise_all, setting_changes
from pipeline.files import link_or_copy
from pipeline.sets.files import require_shards
from pipeline.sets.layers import layer_file_problems
from pipeline.sets.open import LogitSet, find_set
from pipeline.sets.record import SetRecord, changed
from pipeline.sets.record_parts import KindName, LayersName, Shard, Version, shared_settings
from pipeline.sets.registry import TEXT_HASH_BYTES
from pipeline.sets.signals.rows import logits_of, token_logits_of
from pipeline.sets.write import plan_shards
from pipeline.sources import Source
from pipeline.sql.read_only_query import open_files, select, to_arrow
from teacher.dump.known_logits import Known, TextHashes
from teacher.dump.rows import origins, source_rows

Hashes = Callable[[pa.Table], list[bytes]]  # of the texts of rows
SAME_COLUMNS = ("source_row", "origin", "text_hash", "label", "score")
# A text may have several answers. The first by key is taken, because every process has to choose the same one.
ANSWERS = """
select text_hash, arg_min(logits, format('{}:{:020d}', split, source_row)) as logits
from rows semi join wanted using (text_hash) group by text_hash
"""


def open_old(name: str, store: Path, root: Path, kind: type[LogitSet], layers: Collection[LayersName]) -> LogitSet:
    """Opens the set that ``--extend`` names.

    Raises:
        ConfigError: if that is the new set itself, or a set with variants.
        IntegrityError: if a file of it does not match its record.
    """
    old = kind.open(find_set(name, store))
    if old.root.resolve() == root.resolve():
        raise ConfigError(f"--extend {name}: the new version needs its own --name, because the old one stays")
    # With gaps a range of source rows does not determine the rows of a file, and reuse relies on that.
    if any(described.absent for described in old.record.splits.values()):
        raise ConfigError(f"--extend {name}: has rows without logits, so it cannot be extended")
    if old.record.augmentation is not None:
        advice = "Extend a set that was dumped with --augment none"
        raise ConfigError(f"--extend {name}: has variants of its rows, which cannot be extended. {advice}")
    require_shards(old.root, old.record, old.record.shards)
    taken_over = [signal for signal in old.record.signals.layer_signals if signal.name in layers]
    raise_all(IntegrityError, f"{old.root}: cannot be used", layer_file_problems(old.root, old.record, taken_over))
    return old


def extended(planned: SetRecord, old: LogitSet, source: Source, rows_per_shard: int, hashes: Hashes) -> SetRecord:
    """Returns the plan of a set that reuses as much as possible of an old one."""
    changes = setting_changes(shared_settings(old.record.settings), shared_settings(planned.settings))
    if changes:
        raise FingerprintMismatchError(
            f"{old.root} cannot be extended, because it was made with other settings:\n{changes}"
        )
    shards: list[Shard] = []
    for split in dict.fromkeys(shard.split for shard in planned.shards):
        shared = _shared_shards(old, split, source, hashes)
        shards += [*shared, *new_shards(shared, split, source.splits[split].num_rows, rows_per_shard, planned.kind)]
    return new_version(planned, old, shards)


def new_version(planned: SetRecord, old: LogitSet, shards: Sequence[Shard]) -> SetRecord:
    """Returns the plan of a set with these shards. Those with a ``version`` are files of the old set."""
    if not any(shard.version for shard in shards):
        return planned
    earlier = Version(format_version=old.record.format_version, settings=old.record.settings)
    return changed(
        planned,
        shards=tuple(shards),
        versions_before=(*old.record.versions_before, earlier),
        notes=(*planned.notes, f"extends {old.record.name} ({old.record.fingerprint[:12]}…)"),
    )


def take_over(root: Path, record: SetRecord, old: LogitSet) -> None:
    """Adds the shared files to the new set, as hard links if the file system supports them."""
    paths = [shard.path for shard in record.shards if shard.version]
    for path in paths:
        link_or_copy(old.root / path, root / path)
    if paths:
        console.note(f"{len(paths)} of {len(record.shards)} shards are shared with {old.root}")


def answers(old: LogitSet, hashes: Sequence[TextHashes]) -> Known:
    """Returns the logits of the old set for its texts."""
    files = [old.root / shard.path for shard in old.record.shards]
    distinct = np.unique(np.concatenate(hashes))
    # Built from the raw bytes, because a list of millions of Python objects would take gigabytes.
    buffers = [None, pa.py_buffer(distinct.tobytes())]
    wanted = pa.Array.from_buffers(pa.binary(TEXT_HASH_BYTES), len(distinct), buffers)
    with open_files({"rows": files}, query=ANSWERS) as connection:
        connection.register("wanted", pa.table({"text_hash": wanted}))
        table = to_arrow(select(connection, ANSWERS))
    texts, num_logits = table.column("text_hash").to_pylist(), old.record.target.num_logits
    if old.record.signals.token_logits is None:
        return Known.of(texts, logits_of(table, num_logits))
    return Known.of(texts, token_logits_of(table, num_logits), pc.list_value_length(table.column("logits")).to_numpy())


def _shared_shards(old: LogitSet, split: str, source: Source, hashes: Hashes) -> list[Shard]:
    """Returns the first files of a split, as long as they have the same rows as the new source."""
    shared = []
    columns = [name for name in SAME_COLUMNS if name in old.record.arrow_schema().names]
    for shard in old.record.shards_of(split) if split in old.record.splits else []:
        if shard.stop > source.splits[split].num_rows:
            break
        stored = pq.read_table(old.root / shard.path, columns=columns, partitioning=None)
        new = source_rows(source, shard)
        new = new.append_column("origin", origins(source, shard))
        new = new.append_column("text_hash", pa.array(hashes(new), stored.column("text_hash").type))
        if not all(stored.column(name).equals(new.column(name)) for name in columns):
            # Only a prefix is reused: new files are numbered after the shared ones, so the ranges have to be
            # contiguous.
            break
        shared.append(reused(old, shard))
    return shared


def reused(old: LogitSet, shard: Shard) -> Shard:
    """Returns a file of an old set as a part of a new one."""
    # It keeps the fingerprint of the version that wrote it, because its footer cannot be changed.
    return shard.unmeasured().model_copy(update={"version": shard.version or old.record.fingerprint})


def new_shards(
    shared: Sequence[Shard], split: str, num_rows: int, rows_per_shard: int, folder: KindName
) -> list[Shard]:
    """Returns files for the rows after the shared ones, with the following numbers."""
    first, start = len(shared), shared[-1].stop if shared else 0
    if shared and start == num_rows:
        return []
    planned = plan_shards(split, num_rows - start, rows_per_shard, folder)
    shift = {"index": first, "count": first, "start": start, "stop": start}
    return [s.model_copy(update={name: getattr(s, name) + by for name, by in shift.items()}) for s in planned]
