"""The kinds of rows that a teacher runs on: one file each, all written by the driver in `teacher.dump`."""

from collections.abc import Callable

from pipeline.devices import processes
from pipeline.errors import ConfigError, raise_all
from pipeline.sets.record import SetRecord
from pipeline.settings import flag_name, flags, given
from pipeline.tasks.task import Task, TaskType, load_task
from teacher.corpus.text import open_text
from teacher.dump.driver import Executor, run_dump
from teacher.dump.teacher_dump import TeacherDump
from teacher.dumps.examples import ExamplesDump
from teacher.dumps.masked_words import MaskedWordsDump
from teacher.dumps.sentences import SentencesDump, open_rows
from teacher.dumps.token_labels import TokenLabelsDump
from teacher.settings import DumpSettings, DumpTask, LabelLogits, MaskedWordFlags, TextLogits, VectorFlags


def _examples(task: Task, config: DumpSettings, command: str) -> TeacherDump:
    rows = config.rows
    assert isinstance(rows, DumpTask), "ensured by its signal"
    assert isinstance(rows.signal, TextLogits), "other signals have other dumps"
    return ExamplesDump(task, rows, rows.signal, config.run, config.place, command)


def _token_labels(task: Task, config: DumpSettings, command: str) -> TeacherDump:
    rows = config.rows
    assert isinstance(rows, DumpTask), "ensured by its signal"
    assert isinstance(rows.signal, TextLogits), "other signals have other dumps"
    # Variants and unlabelled rows have no labels of words, and files of layers are keyed by variants.
    others = given(rows.signal).keys() & flags(TextLogits).keys() - flags(LabelLogits).keys()
    reason = "is not supported for labelled words (type: token_labels)"
    raise_all(ConfigError, "wrong flags", [f"{flag_name(name)}: {reason}" for name in sorted(others)])
    return TokenLabelsDump(task, rows, rows.signal, config.run, config.place, command)


OF_TASKS: dict[TaskType, Callable[[Task, DumpSettings, str], TeacherDump]] = {  # with --signal logits
    "classification": _examples,
    "multilabel": _examples,
    "regression": _examples,
    "token_labels": _token_labels,
}


def open_dump(config: DumpSettings, command: str) -> TeacherDump:
    """Returns the dump that settings describe, its rows read and checked."""
    rows, run, place = config.rows, config.run, config.place
    if isinstance(rows.signal, VectorFlags):
        return SentencesDump(open_rows(rows, run.forward.max_seq_length), rows.signal, run, place, command)
    if isinstance(rows.signal, MaskedWordFlags):
        text = open_text(rows, run.forward.max_seq_length)
        return MaskedWordsDump(text, rows.signal, run, place, command)
    task = load_task(rows.task, rows.manifest)
    return OF_TASKS[task.type](task, config, command)


def dump(config: DumpSettings, command: str) -> SetRecord | None:
    """Writes the set that settings describe, or resumes it."""
    return run_dump(open_dump(config, command), Executor(processes(), config.run.jobs.job, config.run.cluster))
