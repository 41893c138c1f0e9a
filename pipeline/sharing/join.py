"""``distill join``: your own texts with the logits of a set without text, matched by the hash of the text.

Every row of your data whose text is in the set gets its logits. Gold comes from your data. Rows without a match, such
as variants and unlabelled rows, are listed. If every row of the data has logits, the result equals the set that the
teacher's own dump would have written, including the fingerprint.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder
from pipeline.sets.files import require_shards
from pipeline.sets.kinds.examples import ExampleSet, shard_table, text_hashes
from pipeline.sets.open import find_set, load_set_tokenizer, usable_record
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import AugmentationRecord, Shard, SplitRecord
from pipeline.sets.registry import TEXT_HASH_BYTES
from pipeline.sets.set_settings import JoinSettings
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.token_vectors import take_over_token_vectors
from pipeline.sets.write import complete_and_verify, plan_shards, shards_to_write, start_set, write_shard
from pipeline.sharing.push import TEXT_SETTING
from pipeline.sources import Source, load_source, rows_sha256
from pipeline.sources.source import sentences
from pipeline.sql.read_only_query import open_files, select, to_arrow
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Task, load_task_of_set
from pipeline.text.text_to_ids import TextReader

# Duplicate texts may have different gold labels and slightly different logits, so the same key is preferred. Other rows
# take the logits of the first row with their text, in the order of the keys, to be reproducible.
MATCHED = """
    with same as (
        select m.split, m.source_row, s.logits,
            s.label is distinct from m.label or s.score is distinct from m.score as other_gold
        from mine m join theirs s using (split, source_row, text_hash) where s.origin = 'original'
    ), first as (
        select text_hash, arg_min({'logits': logits, 'label': label, 'score': score, 'origin': origin},
            format('{}:{:020d}:{:010d}', split, source_row, variant)) as row
        from theirs semi join mine using (text_hash) group by text_hash
    ), elsewhere as (
        select m.split, m.source_row, row.logits,
            row.origin = 'original'
                and (row.label is distinct from m.label or row.score is distinct from m.score) as other_gold
        from mine m anti join same using (split, source_row) join first using (text_hash)
    )
    from same union all from elsewhere order by split, source_row
"""
MISSING = """
    select split, source_row, variant from theirs anti join mine using (text_hash) order by split, source_row, variant
"""

# Every row of your data uses one row of the set, so a text that the set repeats more often leaves rows unused.
COPIES = """
    select coalesce(sum(greatest(t.n - m.n, 0)), 0)::bigint as copies
    from (select text_hash, count(*) as n from theirs where origin = 'original' group by text_hash) t
    join (select text_hash, count(*) as n from mine group by text_hash) m using (text_hash)
"""


@dataclass(frozen=True)
class Joined:
    """The outcome of a join.

    Attributes:
        root: the new set.
        record: of the new set.
        matched: number of your rows that have logits now, by split.
        extra: your source rows that the set does not contain, by split.
        missing: rows of the set whose text is not in your data: source row and variant, by split.
        other_gold: your source rows whose gold differs from the set, by split.
        copies: number of rows of the set that are left out because your data repeat their text less often.
        variants: how the variants of the set were made, whose texts are not available here, or None without variants.
    """

    root: Path
    record: SetRecord
    matched: dict[str, int]
    extra: dict[str, list[int]]
    missing: dict[str, list[tuple[int, int]]]
    other_gold: dict[str, list[int]]
    copies: int
    variants: AugmentationRecord | None


def join(settings: JoinSettings, command: str) -> Joined:
    """Writes a set with your own texts and the logits of a set without text.

    Raises:
        ConfigError: if the set has its text, or is of another task.
        DataError: if no row matches.
        IntegrityError: if a file of the set does not match its record.
    """
    root = find_set(settings.set, settings.store)
    advice = "it has its text. `distill join` is for sets that were pushed --without-text"
    record = usable_record(root, settings.allow_unverified, "examples", advice)
    if record.has_text:
        raise ConfigError(f"{root}: {advice}")
    task = _task_of(root, record, settings)
    source = load_source(task, settings.data, tuple(record.splits))
    require_shards(root, record, record.shards)
    make_folder(settings.store)
    reader = TextReader.of(load_set_tokenizer(root, record.tokenizer))
    keys = _keys(source, record)
    matched, missing, copies = _look_up(root, record, keys)
    if not matched.num_rows:
        raise DataError(
            f"{root}: contains none of the {keys.num_rows:,} texts of {source.description}. The set is of "
            f"{record.source}. Check that these are the same data: one changed character makes a different "
            "text."
        )
    new_root, logits = settings.store / settings.name, ExampleSet(root, record)
    planned = _staged(record, source, matched, settings.name, command)
    # The same steps as a dump, so a killed join is resumed in the same way.
    joined, unfinished = shards_to_write(new_root, start_set(new_root, planned, logits.tokenizer_json()))
    for shard in unfinished:
        write_shard(new_root, joined, shard, [_rows(joined, shard, source, reader, matched)])
    joined = complete_and_verify(new_root, joined)
    joined = take_over_token_vectors(root, record, new_root, joined)
    found = _report(source, matched)
    other = matched.filter(matched.column("other_gold"))
    others = (
        _by_split(missing, record),
        {
            split: other.filter(pc.equal(other.column("split"), split)).column("source_row").to_pylist()
            for split in source.splits
        },
    )
    return Joined(new_root, joined, *found, *others, copies, record.augmentation)


def _task_of(root: Path, record: SetRecord, settings: JoinSettings) -> Task:
    task = load_task_of_set(root, record.dataset_name, settings.manifest)
    targets = [make_target(task, "classification" if record.target.bins else None)]
    if task.name != record.dataset_name or task.is_pair != record.is_pair or record.target not in targets:
        raise ConfigError(
            f"{root}: its logits are of task {record.dataset_name!r} with {', '.join(record.target.names)}, "
            f"not of {task.name!r} as its manifest here describes it"
        )
    return task


def _keys(source: Source, record: SetRecord) -> pa.Table:
    parts = []
    for split, rows in source.splits.items():
        hashes = pa.array(text_hashes(rows, record.tokenizer.sha256), pa.binary(TEXT_HASH_BYTES))
        names = pa.repeat(pa.scalar(split), rows.num_rows)
        gold = {name: rows.column(name) for name in ("source_row", "label", "score")}
        parts.append(pa.table({"split": names, "text_hash": hashes, **gold}))
    return pa.concat_tables(parts)


def _look_up(root: Path, record: SetRecord, keys: pa.Table) -> tuple[pa.Table, pa.Table, int]:
    files = [root / shard.path for shard in record.shards]
    queries = MATCHED, MISSING, COPIES
    with open_files({"theirs": files}, query=" ".join(queries)) as connection:
        connection.register("mine", keys)
        matched, missing, copies = (to_arrow(select(connection, query)) for query in queries)
    return matched, missing, int(copies.column("copies")[0].as_py())


def _staged(record: SetRecord, source: Source, matched: pa.Table, name: str, command: str) -> SetRecord:
    """Returns the record that the teacher's own dump would have. Gaps are part of the fingerprint."""
    absent = {
        split: rows.num_rows - pc.sum(pc.equal(matched.column("split"), split)).as_py()
        for split, rows in source.splits.items()
    }
    splits = {
        split: SplitRecord(
            rows=rows.num_rows,
            expected_rows=record.splits[split].expected_rows,
            rows_sha256=rows_sha256(rows),
            absent=absent[split],
        )
        for split, rows in source.splits.items()
    }
    settings = {
        key: value
        for key, value in record.settings.items()
        if key != TEXT_SETTING and not key.startswith(("augment.", "source."))
    }
    # With these hashes a complete join has the fingerprint of the teacher's own dump of the same data.
    settings |= {f"source.{split}": described.rows_sha256 for split, described in splits.items()}
    # A set with gaps must differ from the complete one, so its fingerprint includes the set it was joined from.
    if any(absent.values()):
        settings["joined"] = record.fingerprint
    order = [split for split in dict.fromkeys(shard.split for shard in record.shards) if split in source.splits]
    return staged(
        settings,
        command,
        base=record,
        name=name,
        source=source.description,
        splits=splits,
        shards=tuple(shard for split in order for shard in _shards(record, split, splits[split].rows)),
        notes=(
            *source.warnings,
            f"logits joined from a set without text, made by: {record.command}",
            *left_out(record.augmentation),
        ),
        has_text=True,
        augmentation=None,
        unlabelled=None,
        versions_before=(),
    )


def left_out(variants: AugmentationRecord | None) -> tuple[str, ...]:
    """Returns a note about variants that are left out because their texts are not available here."""
    return (f"left out because their texts are not available: {variants.summary}",) if variants else ()


def _shards(record: SetRecord, split: str, num_rows: int) -> list[Shard]:
    """Returns the ranges of the set's own shards if they fit, otherwise a similar number of ranges."""
    if num_rows == record.splits[split].rows:
        return [shard.unmeasured().model_copy(update={"version": None}) for shard in record.shards_of(split)]
    return plan_shards(split, num_rows, max(1, -(-num_rows // len(record.shards_of(split)))))


def _rows(record: SetRecord, shard: Shard, source: Source, reader: TextReader, matched: pa.Table) -> pa.Table:
    """The rows of a shard: your own texts, ids and gold, and the logits of the set."""
    in_shard = matched.filter(
        pc.and_(
            pc.equal(matched.column("split"), shard.split),
            pc.and_(
                pc.greater_equal(matched.column("source_row"), shard.start),
                pc.less(matched.column("source_row"), shard.stop),
            ),
        )
    )
    rows = source.splits[shard.split].take(in_shard.column("source_row"))
    rows = rows.append_column("variant", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    rows = rows.append_column("origin", pa.repeat(pa.scalar("original"), rows.num_rows))
    inputs = reader.tokenize(*sentences(rows), record.max_seq_length)
    hashes = text_hashes(rows, record.tokenizer.sha256)
    return shard_table(record, shard, rows, hashes, inputs, logits_of(in_shard, record.target.num_logits))


def _report(source: Source, matched: pa.Table) -> tuple[dict[str, int], dict[str, list[int]]]:
    counts, extra = {}, {}
    for split, rows in source.splits.items():
        source_rows = matched.filter(pc.equal(matched.column("split"), split)).column("source_row").to_numpy()
        counts[split] = len(source_rows)
        extra[split] = np.setdiff1d(np.arange(rows.num_rows), source_rows).tolist()
    return counts, extra


def _by_split(missing: pa.Table, record: SetRecord) -> dict[str, list[tuple[int, int]]]:
    keys: dict[str, list[tuple[int, int]]] = {split: [] for split in record.splits}
    for row in missing.to_pylist():
        keys[row["split"]].append((row["source_row"], row["variant"]))
    return keys
