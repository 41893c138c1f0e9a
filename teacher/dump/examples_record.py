"""The record of a set before its first shard: who speaks about what, under which settings, in which shards."""

from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import AugmentationRecord, Setting, UnlabelledRecord
from pipeline.sets.signals import Logits, Signals
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.augment.variants import Variants
from teacher.config import DumpTask
from teacher.dump.records import LIBRARIES, of_task
from teacher.dump.rows import Rows, longest_row
from teacher.dump.source_parts import NO_VARIANTS, all_shards
from teacher.models.classifier import Teacher


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
    settings, parts = of_task("logits", config, task, source, teacher)
    if config.doc_stride is not None:
        settings["doc_stride"] = config.doc_stride
    if unlabelled:
        settings |= {f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()}
    if variants:
        settings |= _augment_settings(variants.record)
    in_all = {variants.record.split: variants.record.rows} if variants else NO_VARIANTS
    shards = all_shards(source, config.rows_per_shard, in_all)
    longest = config.max_seq_length
    if config.windows is not None:
        longest = max(longest, longest_row(Rows(source, variants), shards, teacher.reader))
    return staged(
        settings,
        command,
        LIBRARIES,
        kind="examples",
        signals=Signals(logits=Logits(target=teacher.target)),
        max_seq_length=longest,
        windows=config.windows,
        shards=shards,
        augmentation=variants.record if variants else None,
        unlabelled=unlabelled,
        **parts,
    )


def _augment_settings(record: AugmentationRecord) -> dict[str, Setting]:
    return {f"augment.{name}": value for name, value in record.settings.items()} | {"augment.rows": record.rows_sha256}
