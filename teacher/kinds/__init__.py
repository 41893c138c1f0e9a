"""The kinds of rows that a teacher runs on: one file each, all written by the driver in `teacher.dump`."""

from typing import Any

from pipeline.sets.record import SetRecord
from pipeline.tasks.task import TaskType, load_task
from teacher.config import DumpCorpus, DumpTask
from teacher.dump.driver import run_dump
from teacher.dump.executor import Processes
from teacher.dump.teacher_dump import TeacherDump
from teacher.kinds.examples import ExamplesDump
from teacher.kinds.masked_words import MaskedWordsDump
from teacher.kinds.sentences import SentencesDump
from teacher.kinds.token_labels import TokenLabelsDump

OF_TASKS: dict[TaskType, type[TeacherDump[DumpTask]]] = {  # with --signal logits
    "classification": ExamplesDump,
    "multilabel": ExamplesDump,
    "regression": ExamplesDump,
    "token_labels": TokenLabelsDump,
}


def open_dump(config: DumpTask | DumpCorpus, command: str) -> TeacherDump[Any]:
    """Returns the dump that settings describe, its rows read and checked.

    Args:
        config: the command's settings.
        command: the command line, for the record.
    """
    if config.signal == "vectors":
        return SentencesDump(config, command)
    if isinstance(config, DumpCorpus):
        return MaskedWordsDump(config, command)
    return OF_TASKS[load_task(config.task, config.manifest).type](config, command)


def dump(config: DumpTask | DumpCorpus, command: str) -> SetRecord | None:
    """Writes the set that settings describe, or goes on with it; see `run_dump`."""
    return run_dump(open_dump(config, command), Processes.of(config))
