"""The parts of a record that describe the teacher and the task."""

from typing import Any

from pipeline.parsing import as_names
from pipeline.sets.record_parts import Setting, TeacherRecord
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.dump.rows import split_records, task_record, tokenizer_record
from teacher.models.classifier import Teacher
from teacher.models.loaded import LoadedModel, base_model_of, head_settings
from teacher.models.model_settings import ForwardFlags

LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers", "pyarrow")


def teacher_record(teacher: LoadedModel, labels: tuple[str, ...] = ()) -> TeacherRecord:
    """Describes a teacher. ``labels`` is the order of a classifier's own outputs."""
    return TeacherRecord(
        name=teacher.name,
        revision=teacher.revision,
        weights_sha256=teacher.weights_sha256,
        num_parameters=teacher.num_parameters,
        labels=labels,
        base_model=base_model_of(teacher.name),
    )


def of_task(
    signal: str, name: str, forward: ForwardFlags, task: Task, source: Source, teacher: Teacher
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
