"""The kinds of rows that a teacher runs on: one file each, all written by the driver in `teacher.dump`."""

from collections.abc import Callable

from pipeline.sets.record import SetRecord
from pipeline.settings import build, flag_name, flags, given
from pipeline.tasks.task import Task, TaskType, load_task
from teacher.corpus.sentence_rows import open_rows
from teacher.corpus.text import open_text
from teacher.dump.driver import run_dump
from teacher.dump.executor import Processes
from teacher.dump.teacher_dump import TeacherDump
from teacher.dumps.examples import ExamplesDump
from teacher.dumps.masked_words import MaskedWordsDump
from teacher.dumps.sentences import SentencesDump
from teacher.dumps.token_labels import TokenLabelsDump
from teacher.settings import DumpSettings, DumpTask, MaskedWordFlags, TextLogits, VectorFlags, WordDumpSettings


def _examples(task: Task, config: DumpSettings, command: str) -> TeacherDump:
    rows = config.rows
    assert isinstance(rows, DumpTask), "ensured by its signal"
    assert isinstance(rows.signal, TextLogits), "other signals have other dumps"
    return ExamplesDump(task, rows, rows.signal, config.run, config.place, command)


def _token_labels(task: Task, config: DumpSettings, command: str) -> TeacherDump:
    values, known = given(config), flags(WordDumpSettings)
    reason = "is not supported for labelled words (type: token_labels)"
    foreign = [f"{flag_name(name)}: {reason}" for name in values if name not in known]
    words = build(WordDumpSettings, {name: value for name, value in values.items() if name in known}, foreign)
    return TokenLabelsDump(task, words.rows, words.run, words.place, command)


OF_TASKS: dict[TaskType, Callable[[Task, DumpSettings, str], TeacherDump]] = {  # with --signal logits
    "classification": _examples,
    "multilabel": _examples,
    "regression": _examples,
    "token_labels": _token_labels,
}


def open_dump(config: DumpSettings, command: str) -> TeacherDump:
    """Returns the dump that settings describe, its rows read and checked.

    Args:
        config: the command's settings.
        command: the command line, for the record.
    """
    rows, run, place = config.rows, config.run, config.place
    if isinstance(rows.signal, VectorFlags):
        return SentencesDump(open_rows(rows, run.forward.max_seq_length), rows.signal, run, place, command)
    if isinstance(rows.signal, MaskedWordFlags):
        text = open_text(rows, run.forward.max_seq_length)
        return MaskedWordsDump(text, rows.signal, run, place, command)
    task = load_task(rows.task, rows.manifest)
    return OF_TASKS[task.type](task, config, command)


def dump(config: DumpSettings, command: str) -> SetRecord | None:
    """Writes the set that settings describe, or resumes it. See `run_dump`."""
    return run_dump(open_dump(config, command), Processes.of(config.run.jobs, config.run.cluster))
