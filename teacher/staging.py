"""The manifest of a set before its first shard: who speaks about what, under which settings, in which shards."""

from datetime import UTC, datetime
from importlib.metadata import version

import pyarrow.compute as pc

from pipeline.logit_set.manifest import (
    ExamplesManifest,
    Setting,
    Shard,
    SplitRecord,
    TaskRecord,
    TeacherRecord,
    TokenizerRecord,
    fingerprint,
)
from pipeline.logit_set.writer import plan_shards
from pipeline.sources import Source, rows_sha256
from pipeline.tasks import Task
from pipeline.tokenization import pad_id, tokenizer_sha256, vocabulary_size
from teacher.config import DumpConfig
from teacher.models import Teacher, weights_sha256

# Fitted to the files of SST-2 (short sentences) and MRPC (long pairs); both are within 3 %.
BYTES_PER_ROW = 25.0
BYTES_PER_CHARACTER = 0.88
LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers", "pyarrow")


def num_characters(source: Source) -> int:
    """Characters of text in all splits."""
    texts = [table.column(name) for table in source.splits.values() for name in ("sentence1", "sentence2")]
    return sum(pc.sum(pc.utf8_length(text)).as_py() or 0 for text in texts)


def expected_bytes(source: Source) -> int:
    """About how large the set's files will be."""
    num_rows = sum(rows.num_rows for rows in source.splits.values())
    return int(num_rows * BYTES_PER_ROW + num_characters(source) * BYTES_PER_CHARACTER)


def all_shards(source: Source, rows_per_shard: int) -> tuple[Shard, ...]:
    """The shards of every split, smallest split first, so that what is wrong with a teacher shows early."""
    splits = sorted(source.splits.items(), key=lambda item: item[1].num_rows)
    return tuple(shard for split, rows in splits for shard in plan_shards(split, rows.num_rows, rows_per_shard))


def staged_manifest(config: DumpConfig, task: Task, source: Source, teacher: Teacher, command: str) -> ExamplesManifest:
    """Describes the set that these settings will give; its fingerprint covers all that decides rows and logits."""
    tokenizer = TokenizerRecord(
        sha256=tokenizer_sha256(teacher.tokenizer.to_str()),
        vocabulary_size=vocabulary_size(teacher.tokenizer),
        pad_id=pad_id(teacher.tokenizer),
    )
    speaker = TeacherRecord(
        name=teacher.name,
        revision=teacher.revision,
        weights_sha256=weights_sha256(teacher.model),
        num_parameters=teacher.num_parameters,
        labels=teacher.labels,
    )
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
        **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
    }
    return ExamplesManifest(
        name=config.name or task.name,
        state="staged",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        task=TaskRecord(
            name=task.name, version=task.version, is_pair=task.is_pair, metrics=task.metrics, licence=task.licence
        ),
        target=teacher.target,
        teacher=speaker,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        source=source.description,
        splits=splits,
        settings=settings,
        fingerprint=fingerprint(settings),
        shards=all_shards(source, config.rows_per_shard),
        notes=tuple(source.warnings),
        versions={name: version(name) for name in LIBRARIES},
    )
