"""The teacher's inputs: a task's rows, variants of the rows of one split, and unlabelled rows after them.

Also the parts of a record that describe them and the teacher. This module does not import torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.parsing import as_names
from pipeline.sets.open import tokenizer_record
from pipeline.sets.record_parts import (
    MAX_SEQ_LENGTH,
    UNLABELLED,
    HubDataset,
    KindName,
    Setting,
    Shard,
    SplitRecord,
    TaskRecord,
    TeacherRecord,
)
from pipeline.sets.write import plan_shards
from pipeline.sources import Source, rows_sha256, sentences
from pipeline.sources.hugging_face_rows import description
from pipeline.tasks.task import HUB_ID, Hub, Task
from pipeline.text.text_to_ids import TextReader
from teacher.augment.variants import Variants
from teacher.models.model_settings import ForwardFlags

if TYPE_CHECKING:
    from teacher.models.classifier import Teacher
    from teacher.models.loaded import LoadedModel

LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers", "pyarrow")
COLUMNS = ["source_row", "variant", "origin", "sentence1", "sentence2", "label", "score"]


def source_rows(source: Source, shard: Shard) -> pa.Table:
    """Returns the source rows of a shard."""
    return source.splits[shard.split].slice(shard.start, shard.stop - shard.start)


def num_own(source: Source, shard: Shard) -> int:
    """Returns how many source rows of a shard are the task's own. The unlabelled ones come after them."""
    own: int = source.own(shard.split).num_rows
    return max(0, min(shard.stop, own) - shard.start)


def origins(source: Source, shard: Shard) -> pa.Array:
    """Returns the origin of each source row of a shard."""
    own = num_own(source, shard)
    return pa.array(np.repeat(["original", UNLABELLED], [own, shard.stop - shard.start - own]), pa.string())


@dataclass(frozen=True)
class HeldRows:
    """The rows of one shard, in memory."""

    table: pa.Table

    def read(self, shard: Shard) -> pa.Table:
        return self.table

    def count(self, shard: Shard) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True)
class Rows:
    """A task's rows, with or without variants."""

    source: Source
    variants: Variants | None

    def hold(self, shard: Shard) -> HeldRows:
        """Returns only the rows of a shard."""
        rows = self.read(shard)
        # Arrow pickles a slice together with the whole table behind it. take() copies only these rows.
        return HeldRows(rows.take(pa.array(np.arange(rows.num_rows))))

    def read(self, shard: Shard) -> pa.Table:
        """Returns the rows of a shard by source row and variant. Variants have no gold: a new text may change it."""
        rows = source_rows(self.source, shard)
        rows = rows.append_column("variant", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
        rows = rows.append_column("origin", origins(self.source, shard)).select(COLUMNS)
        if self.variants is None or shard.split != self.variants.record.split:
            return rows
        variants = self.variants.read(shard.start, shard.stop)
        for name in ("label", "score"):
            variants = variants.append_column(name, pa.nulls(variants.num_rows, rows.schema.field(name).type))
        both = pa.concat_tables([rows, variants.select(COLUMNS).cast(rows.schema)])
        # Keys have to ascend inside a file, and neighbouring variants of one row compress well.
        return both.sort_by([("source_row", "ascending"), ("variant", "ascending")])

    def count(self, shard: Shard) -> int:
        """Returns the approximate number of rows of a shard."""
        num_rows = shard.stop - shard.start
        if self.variants is None or shard.split != self.variants.record.split:
            return num_rows
        return num_rows + round(num_own(self.source, shard) * (self.variants.record.multiplier - 1))


def longest_row(source: Rows, shards: Sequence[Shard], reader: TextReader) -> int:
    """Returns the number of tokens of the longest row of shards, including special tokens."""
    longest = 0
    for shard in shards:
        rows = source.read(shard)
        first, second = sentences(rows)
        length_N = np.sum([part.lengths for part in reader.read(first, second, None)], axis=0)
        length_N = length_N + reader.tokenizer.num_special_tokens_to_add(second is not None)
        longest = max(longest, int(length_N.max(initial=0)))
        if longest > MAX_SEQ_LENGTH:
            number = rows.column("source_row")[int(length_N.argmax())].as_py()
            raise DataError(
                f"{shard.split}, row {number}: {longest:,} tokens, but a set supports at most {MAX_SEQ_LENGTH:,}"
            )
    return longest


# Fitted to the files of SST-2 (short sentences) and MRPC (long pairs), whose sizes are within 3 %.
BYTES_PER_ROW = 25.0
BYTES_PER_CHARACTER = 0.88


@dataclass(frozen=True)
class Amount:
    """The amount of input: rows by split, and characters in total."""

    rows: dict[str, int]
    characters: int

    @property
    def expected_bytes(self) -> int:
        """The approximate size of the set's files."""
        return int(sum(self.rows.values()) * BYTES_PER_ROW + self.characters * BYTES_PER_CHARACTER)


NO_VARIANTS: Mapping[str, int] = {}


def amount(source: Source, num_variants: Mapping[str, int] = NO_VARIANTS) -> Amount:
    """Counts rows and characters, with at most so many variants of each own row of a split."""
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
    """Returns the shards of every split, smallest split first, so that problems of a teacher show early."""
    splits = sorted(source.splits.items(), key=lambda item: item[1].num_rows)
    sizes = {split: rows_per_shard for split, _ in splits}
    for split, count in num_variants.items():
        multiplier = 1 + count / source.splits[split].num_rows
        # Shards are ranges of source rows, so with variants a range has to be shorter for a file of the same size.
        sizes[split] = max(1, int(rows_per_shard / multiplier))
    return tuple(shard for split, rows in splits for shard in plan_shards(split, rows.num_rows, sizes[split], folder))


def task_record(task: Task, source: Source) -> TaskRecord:
    """Describes a task, and the data set of the hub if its rows were read from there."""
    is_from_hub = task.hub is not None and source.description == description(task.hub)
    return TaskRecord(
        name=task.name,
        version=task.version,
        is_pair=task.is_pair,
        metrics=task.metrics,
        licence=task.licence,
        text_columns=task.columns.texts,
        label_columns=task.columns.label,
        score_range=task.score_range,
        license=task.license,
        language=task.language,
        hub=hub_dataset(task.hub) if is_from_hub else None,
    )


def hub_dataset(hub: Hub | None) -> HubDataset | None:
    """Describes a data set of the hub. A manifest may also name a local folder, which cards must not mention."""
    return HubDataset(id=hub.id, config=hub.config) if hub is not None and re.match(HUB_ID, hub.id) else None


def split_records(task: Task, source: Source) -> dict[str, SplitRecord]:
    """Describes the source rows of each split."""
    return {
        split: SplitRecord(rows=rows.num_rows, expected_rows=task.splits[split], rows_sha256=rows_sha256(rows))
        for split, rows in source.splits.items()
    }


def head_settings(precision: str) -> dict[str, str]:
    """Returns the settings of a set's fingerprint for the float32 head. Empty if everything is float32."""
    return {} if precision == "fp32" else {"head": "fp32"}


def teacher_record(teacher: "LoadedModel", labels: tuple[str, ...] = ()) -> TeacherRecord:
    """Describes a teacher. ``labels`` is the order of a classifier's own outputs."""
    return TeacherRecord(
        name=teacher.name,
        revision=teacher.revision,
        weights_sha256=teacher.weights_sha256,
        num_parameters=teacher.num_parameters,
        labels=labels,
        base_model=teacher.base_model,
    )


def of_task(
    signal: str, name: str, forward: ForwardFlags, task: Task, source: Source, teacher: "Teacher"
) -> tuple[dict[str, Setting], dict[str, Any]]:
    """Returns the settings that decide a teacher's outputs for a task's rows, and the corresponding record parts."""
    tokenizer, speaker = tokenizer_record(teacher.tokenizer), teacher_record(teacher, teacher.labels)
    splits = split_records(task, source)
    settings: dict[str, Setting] = {
        "signal": signal,
        "task": f"{task.name} version {task.version}",
        "target": teacher.target.model_dump_json(),
        "teacher.weights": speaker.sha256,
        "teacher.labels": as_names(teacher.labels),
        "tokenizer": tokenizer.sha256,
        "max_seq_length": forward.max_seq_length,
        "precision": forward.precision,
        **head_settings(forward.precision),
        **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
    }
    parts = {
        "name": name,
        "task": task_record(task, source),
        "teacher": speaker,
        "tokenizer": tokenizer,
        "precision": forward.precision,
        "source": source.description,
        "splits": splits,
        "notes": tuple(source.warnings),
    }
    return settings, parts
