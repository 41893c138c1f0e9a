"""``teacher-dump --extend``: a new version of a set, which shares the old one's files and answers.

Files whose rows are the same, text and gold, at the same places are taken over as they are. Of the other rows, only
texts that the old set does not hold are asked about.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, raise_all, setting_changes, short
from pipeline.files import link_or_copy
from pipeline.sets.kinds.examples import text_hashes
from pipeline.sets.reader import ExampleSet, find_set
from pipeline.sets.record import SetRecord, changed
from pipeline.sets.record_parts import Shard, Version, shared_settings
from pipeline.sets.row_kind import TEXT_HASH_BYTES
from pipeline.sets.signals.logits import logits_of
from pipeline.sets.verify import require_shards
from pipeline.sets.verify_layers import layer_file_problems
from pipeline.sets.writer import plan_shards
from pipeline.sources import Source
from pipeline.sql.gate import open_files, select, to_arrow
from teacher.config import DumpTask
from teacher.dump.answers import Known, TextHashes
from teacher.dump.rows import origins, source_rows

# of a text with several answers the first: which one it is must not depend on the process
ANSWERS = """
select text_hash, arg_min(logits, format('{}:{:020d}', split, source_row)) as logits
from rows semi join wanted using (text_hash) group by text_hash
"""


def open_old(config: DumpTask, root: Path) -> ExampleSet | None:
    """Opens the set that ``--extend`` names, if it is given.

    Raises:
        ConfigError: if that is the new set itself, or one with variants.
        IntegrityError: if a file of it is not what its record says.
    """
    if config.extend is None:
        return None
    old = ExampleSet.open(find_set(config.extend, config.store))
    if old.root.resolve() == root.resolve():
        raise ConfigError(f"--extend {config.extend}: the new version needs a --name of its own; the old one stays")
    if any(described.absent for described in old.record.splits.values()):
        raise ConfigError(f"--extend {config.extend}: has rows without logits, so that it cannot be extended")
    if old.record.augmentation is not None:
        advice = "extend a set that was dumped with --augment none"
        raise ConfigError(f"--extend {config.extend}: has variants of its rows, which cannot be extended; {advice}")
    require_shards(old.root, old.record, old.record.shards)
    taken_over = [signal for signal in old.record.signals.layer_signals if signal.name in config.layers]
    raise_all(IntegrityError, f"{old.root}: cannot be used", layer_file_problems(old.root, old.record, taken_over))
    return old


def extended(planned: SetRecord, old: ExampleSet, source: Source, rows_per_shard: int) -> SetRecord:
    """The plan of a set that takes over what it can of an old one.

    Args:
        planned: the plan without the old set.
        old: the old set.
        source: the new rows.
        rows_per_shard: about how many rows a new file is to hold.

    Raises:
        FingerprintMismatchError: if the old set was made with other settings.
    """
    changes = setting_changes(shared_settings(old.record.settings), shared_settings(planned.settings), short)
    if changes:
        raise FingerprintMismatchError(f"{old.root} cannot be extended, it was made with other settings:\n{changes}")
    shards: list[Shard] = []
    for split in dict.fromkeys(shard.split for shard in planned.shards):
        shared = _shared_shards(old, split, source, planned.tokenizer.sha256)
        shards += [*shared, *_new_shards(shared, split, source.splits[split].num_rows, rows_per_shard)]
    if not any(shard.version for shard in shards):
        return planned
    earlier = Version(format_version=old.record.format_version, settings=old.record.settings)
    return changed(
        planned,
        shards=tuple(shards),
        versions_before=(*old.record.versions_before, earlier),
        notes=(*planned.notes, f"extends {old.record.name} ({old.record.fingerprint[:12]}…)"),
    )


def take_over(root: Path, record: SetRecord, old: ExampleSet) -> None:
    """Puts the shared files into the new set, as links where the file system has them."""
    paths = [shard.path for shard in record.shards if shard.version]
    for path in paths:
        link_or_copy(old.root / path, root / path)
    if paths:
        console.note(f"{len(paths)} of {len(record.shards)} shards are those of {old.root}")


def answers(old: ExampleSet, hashes: Sequence[TextHashes]) -> Known:
    """What the old set says of those texts that it holds."""
    files = [old.root / shard.path for shard in old.record.shards]
    distinct = np.unique(np.concatenate(hashes))
    buffers = [None, pa.py_buffer(distinct.tobytes())]
    wanted = pa.Array.from_buffers(pa.binary(TEXT_HASH_BYTES), len(distinct), buffers)
    with open_files({"rows": files}) as connection:
        connection.register("wanted", pa.table({"text_hash": wanted}))
        table = to_arrow(select(connection, ANSWERS))
    return Known.of(table.column("text_hash").to_pylist(), logits_of(table, old.record.target.num_logits))


def _shared_shards(old: ExampleSet, split: str, source: Source, tokenizer_sha256: str) -> list[Shard]:
    """The first files of a split, as far as they hold what the new rows hold at the same places."""
    shared = []
    for shard in old.record.shards_of(split) if split in old.record.splits else []:
        if shard.stop > source.splits[split].num_rows or not _is_same(old, shard, source, tokenizer_sha256):
            break
        version = shard.version or old.record.fingerprint
        shared.append(shard.unmeasured().model_copy(update={"version": version}))
    return shared


def _is_same(old: ExampleSet, shard: Shard, source: Source, tokenizer_sha256: str) -> bool:
    stored = old.read_shard(shard, ["source_row", "origin", "text_hash", "label", "score"])
    new = source_rows(source, shard)
    return (
        np.array_equal(stored.column("source_row"), new.column("source_row"))
        and stored.column("origin").to_pylist() == origins(source, shard).to_pylist()
        and stored.column("text_hash").to_pylist() == text_hashes(new, tokenizer_sha256)
        and stored.column("label").equals(new.column("label"))
        and stored.column("score").equals(new.column("score"))
    )


def _new_shards(shared: list[Shard], split: str, num_rows: int, rows_per_shard: int) -> list[Shard]:
    """Files for the rows after the shared ones, numbered on."""
    first, start = len(shared), shared[-1].stop if shared else 0
    if shared and start == num_rows:
        return []
    planned = plan_shards(split, num_rows - start, rows_per_shard)
    return [
        s.model_copy(
            update={
                "index": first + s.index,
                "count": first + s.count,
                "start": start + s.start,
                "stop": start + s.stop,
            }
        )
        for s in planned
    ]
