"""The record of a set before its first shard: who speaks about what, under which settings, in which shards."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.logit_set.record import SetRecord, staged
from pipeline.logit_set.record_parts import (
    AugmentationRecord,
    RowsName,
    Setting,
    Shard,
    SplitRecord,
    TaskRecord,
    UnlabelledRecord,
)
from pipeline.logit_set.signals import Logits, Signals
from pipeline.logit_set.writer import plan_shards
from pipeline.sources import Source, rows_sha256
from pipeline.tasks.task import TRAIN, Task
from teacher.augment.folder import Variants
from teacher.config import DumpTask
from teacher.dump.records import LIBRARIES, teacher_record, tokenizer_record
from teacher.inference.classifier import Teacher
from teacher.inference.precision import head_settings

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


def amount(source: Source, num_variants: int = 0) -> Amount:
    """Counts rows and characters, with at most so many variants of each of the task's own rows of ``train``."""
    rows = {split: table.num_rows for split, table in source.splits.items()}
    characters = sum(map(_characters, source.splits.values()))
    if num_variants:
        own = source.own(TRAIN)
        rows[TRAIN] += num_variants * own.num_rows
        characters += num_variants * _characters(own)
    return Amount(rows, characters)


def _characters(rows: pa.Table) -> int:
    return sum(pc.sum(pc.utf8_length(rows.column(name))).as_py() or 0 for name in ("sentence1", "sentence2"))


def all_shards(
    source: Source, rows_per_shard: int, num_variants: int = 0, folder: RowsName = "examples"
) -> tuple[Shard, ...]:
    """The shards of every split, smallest split first, so that what is wrong with a teacher shows early.

    Args:
        source: the rows.
        rows_per_shard: about how many rows a file is to hold.
        num_variants: how many variants of rows of ``train`` there are beside these, in all.
        folder: of the files.
    """
    splits = sorted(source.splits.items(), key=lambda item: item[1].num_rows)
    sizes = {split: rows_per_shard for split, _ in splits}
    if num_variants:
        multiplier = 1 + num_variants / source.splits[TRAIN].num_rows
        sizes[TRAIN] = max(1, int(rows_per_shard / multiplier))
    return tuple(shard for split, rows in splits for shard in plan_shards(split, rows.num_rows, sizes[split], folder))


def task_record(task: Task) -> TaskRecord:
    """Describes a task."""
    return TaskRecord(
        name=task.name, version=task.version, is_pair=task.is_pair, metrics=task.metrics, licence=task.licence
    )


def split_records(task: Task, source: Source) -> dict[str, SplitRecord]:
    """Describes the source rows of each split."""
    return {
        split: SplitRecord(rows=rows.num_rows, expected_rows=task.splits[split], rows_sha256=rows_sha256(rows))
        for split, rows in source.splits.items()
    }


def staged_record(
    config: DumpTask,
    task: Task,
    source: Source,
    teacher: Teacher,
    variants: Variants | None,
    unlabelled: UnlabelledRecord | None,
    command: str,
) -> SetRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides rows and logits."""
    tokenizer = tokenizer_record(teacher.tokenizer)
    speaker = teacher_record(teacher, teacher.labels)
    splits = split_records(task, source)
    settings: dict[str, Setting] = {
        "signal": "logits",
        "task": f"{task.name} version {task.version}",
        "target": teacher.target.model_dump_json(),
        "teacher.weights": speaker.weights_sha256,
        "teacher.labels": ",".join(teacher.labels),
        "tokenizer": tokenizer.sha256,
        "max_seq_length": config.max_seq_length,
        "precision": config.precision,
        **head_settings(config.precision),
        **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
        **({f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()} if unlabelled else {}),
        **(_augment_settings(variants.record) if variants else {}),
    }
    return staged(
        settings,
        command,
        LIBRARIES,
        name=config.set_name(task.name),
        rows="examples",
        signals=Signals(logits=Logits(target=teacher.target)),
        task=task_record(task),
        teacher=speaker,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard, variants.record.rows if variants else 0),
        notes=tuple(source.warnings),
        augmentation=variants.record if variants else None,
        unlabelled=unlabelled,
    )


def _augment_settings(record: AugmentationRecord) -> dict[str, Setting]:
    return {f"augment.{name}": value for name, value in record.settings.items()} | {"augment.rows": record.rows_sha256}
