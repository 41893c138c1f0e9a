"""Stage one on a task, whatever it labels: texts, or their words."""

from pipeline.sets.record import SetRecord
from pipeline.tasks.task import load_task
from teacher.config import DumpTask
from teacher.dump.examples import dump
from teacher.words.dump import dump_words


def dump_task(config: DumpTask, command: str) -> SetRecord | None:
    """Writes the set that ``config`` describes, or goes on with it; see `dump` and `dump_words`."""
    labels_words = load_task(config.task, config.manifest).type == "token_labels"
    return dump_words(config, command) if labels_words else dump(config, command)
