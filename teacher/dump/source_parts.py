"""The parts of a record that are known before any teacher is: the task, its rows, in which shards and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from pipeline.sets.record_parts import KindName, Shard, SplitRecord, TaskRecord, TokenizerRecord
from pipeline.sets.writer import plan_shards
from pipeline.sources import Source, rows_sha256
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import pad_id, tokenizer_sha256, vocabulary_size

# Fitted to the files of SST-2 (short sentences) and MRPC (long pairs); both are within 3 %.
BYTES_PER_ROW = 25.0
BYTES_PER_CHARACTER = 0.88


@dataclass(frozen=True)
class Amount:
    """How much there is to ask about: inputs by split, and characters in all."""

    rows: dict[str, int]
    characters: int

    @property
    def expected_bytes(self) -> int:
        """About how large the set's files will be."""
        return int(sum(self.rows.values()) * BYTES_PER_ROW + self.characters * BYTES_PER_CHARACTER)


NO_VARIANTS: Mapping[str, int] = {}


def amount(source: Source, num_variants: Mapping[str, int] = NO_VARIANTS) -> Amount:
    """Counts rows and characters, with at most so many variants of each of the task's own rows of a split."""
    rows = {split: table.num_rows for split, table in source.splits.items()}
    characters = sum(map(_characters, source.splits.values()))
    for split, count in num_variants.items():
        own = source.own(split)
        rows[split] += count * own.num_rows
        characters += count * _characters(own)
    return Amount(rows, characters)


def _characters(rows: pa.Table) -> int:
    return sum(pc.sum(pc.utf8_length(rows.column(name))).as_py() or 0 for name in ("sentence1", "sentence2"))


def all_shards(
    source: Source, rows_per_shard: int, num_variants: Mapping[str, int] = NO_VARIANTS, folder: KindName = "examples"
) -> tuple[Shard, ...]:
    """The shards of every split, smallest split first, so that what is wrong with a teacher shows early.

    Args:
        source: the rows.
        rows_per_shard: about how many rows a file is to hold.
        num_variants: how many variants of its rows a split has beside these, in all.
        folder: of the files.
    """
    splits = sorted(source.splits.items(), key=lambda item: item[1].num_rows)
    sizes = {split: rows_per_shard for split, _ in splits}
    for split, count in num_variants.items():
        multiplier = 1 + count / source.splits[split].num_rows
        sizes[split] = max(1, int(rows_per_shard / multiplier))
    return tuple(shard for split, rows in splits for shard in plan_shards(split, rows.num_rows, sizes[split], folder))


def task_record(task: Task) -> TaskRecord:
    """Describes a task."""
    return TaskRecord(
        name=task.name,
        version=task.version,
        is_pair=task.is_pair,
        metrics=task.metrics,
        licence=task.licence,
        text_columns=task.columns.texts,
    )


def split_records(task: Task, source: Source) -> dict[str, SplitRecord]:
    """Describes the source rows of each split."""
    return {
        split: SplitRecord(rows=rows.num_rows, expected_rows=task.splits[split], rows_sha256=rows_sha256(rows))
        for split, rows in source.splits.items()
    }


def tokenizer_record(tokenizer: Tokenizer) -> TokenizerRecord:
    """Describes the tokenizer that a set's ids belong to."""
    return TokenizerRecord(
        sha256=tokenizer_sha256(tokenizer.to_str()),
        vocabulary_size=vocabulary_size(tokenizer),
        pad_id=pad_id(tokenizer),
    )
