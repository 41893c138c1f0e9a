"""The record of a set before its first shard: who speaks about what, under which settings, in which shards."""

from pipeline.config import as_names
from pipeline.logit_set.record import SetRecord, staged
from pipeline.logit_set.record_parts import AugmentationRecord, Setting, UnlabelledRecord
from pipeline.logit_set.signals import Logits, Signals
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.augment.folder import Variants
from teacher.config import DumpTask
from teacher.dump.records import LIBRARIES, teacher_record
from teacher.dump.rows import Rows, longest_row
from teacher.dump.source_parts import NO_VARIANTS, all_shards, split_records, task_record, tokenizer_record
from teacher.inference.classifier import Teacher
from teacher.inference.precision import head_settings


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
        "teacher.weights": speaker.sha256,
        "teacher.labels": as_names(teacher.labels),
        "tokenizer": tokenizer.sha256,
        "max_seq_length": config.max_seq_length,
        **({} if config.doc_stride is None else {"doc_stride": config.doc_stride}),
        "precision": config.precision,
        **head_settings(config.precision),
        **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
        **({f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()} if unlabelled else {}),
        **(_augment_settings(variants.record) if variants else {}),
    }
    in_all = {variants.record.split: variants.record.rows} if variants else NO_VARIANTS
    shards = all_shards(source, config.rows_per_shard, in_all)
    longest = config.max_seq_length
    if config.windows is not None:
        longest = max(longest, longest_row(Rows(source, variants), shards, teacher.reader))
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
        max_seq_length=longest,
        windows=config.windows,
        precision=config.precision,
        source=source.description,
        splits=splits,
        shards=shards,
        notes=tuple(source.warnings),
        augmentation=variants.record if variants else None,
        unlabelled=unlabelled,
    )


def _augment_settings(record: AugmentationRecord) -> dict[str, Setting]:
    return {f"augment.{name}": value for name, value in record.settings.items()} | {"augment.rows": record.rows_sha256}
