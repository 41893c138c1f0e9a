"""The record of a set before its first shard: who speaks about what, under which settings, in which shards."""

from dataclasses import dataclass

import pyarrow.compute as pc

from pipeline.logit_set.record import SetRecord, staged
from pipeline.logit_set.record_parts import AugmentationRecord, Setting, Shard, SplitRecord, TaskRecord
from pipeline.logit_set.signals import Logits, Signals
from pipeline.logit_set.writer import plan_shards
from pipeline.sources import Source, rows_sha256
from pipeline.tasks.task import Task
from teacher.augment.config import TRAIN
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
    """Counts rows and characters, with at most so many variants of each row of ``train``."""
    times = {split: 1 + num_variants if split == TRAIN else 1 for split in source.splits}
    rows = {split: table.num_rows * times[split] for split, table in source.splits.items()}
    texts = [
        (split, table.column(name)) for split, table in source.splits.items() for name in ("sentence1", "sentence2")
    ]
    return Amount(rows, sum((pc.sum(pc.utf8_length(text)).as_py() or 0) * times[split] for split, text in texts))


def all_shards(source: Source, rows_per_shard: int, multiplier: float = 1) -> tuple[Shard, ...]:
    """The shards of every split, smallest split first, so that what is wrong with a teacher shows early.

    Args:
        source: the rows.
        rows_per_shard: about how many rows a file is to hold.
        multiplier: how many times as many ``train`` has with its variants.
    """
    splits = sorted(source.splits.items(), key=lambda item: item[1].num_rows)
    sizes = {split: max(1, int(rows_per_shard / (multiplier if split == TRAIN else 1))) for split, _ in splits}
    return tuple(shard for split, rows in splits for shard in plan_shards(split, rows.num_rows, sizes[split]))


def staged_record(
    config: DumpTask, task: Task, source: Source, teacher: Teacher, variants: Variants | None, command: str
) -> SetRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides rows and logits."""
    tokenizer = tokenizer_record(teacher.tokenizer)
    speaker = teacher_record(teacher, teacher.labels)
    splits = {
        split: SplitRecord(rows=rows.num_rows, expected_rows=task.splits[split], rows_sha256=rows_sha256(rows))
        for split, rows in source.splits.items()
    }
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
        **(_augment_settings(variants.record) if variants else {}),
    }
    return staged(
        settings,
        command,
        LIBRARIES,
        name=config.set_name(task.name),
        rows="examples",
        signals=Signals(logits=Logits(target=teacher.target)),
        task=TaskRecord(
            name=task.name, version=task.version, is_pair=task.is_pair, metrics=task.metrics, licence=task.licence
        ),
        teacher=speaker,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard, variants.record.multiplier if variants else 1),
        notes=tuple(source.warnings),
        augmentation=variants.record if variants else None,
    )


def _augment_settings(record: AugmentationRecord) -> dict[str, Setting]:
    return {f"augment.{name}": value for name, value in record.settings.items()} | {"augment.rows": record.rows_sha256}
