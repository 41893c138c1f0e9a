"""``distill tasks``: the tasks and corpora that are available by name, and manifests of users."""

from pathlib import Path

import yaml
from pydantic import Field

from distill.commands.command import command
from distill.result import Result, Text
from pipeline.errors import DistillError
from pipeline.parsing import parse_yaml
from pipeline.settings import Settings
from pipeline.tasks.task import Corpus, Task, corpus_names, load_corpus, load_task, task_names


class TasksSettings(Settings):
    """Flags of ``distill tasks``."""


class ShowTaskSettings(Settings):
    """Flags of ``distill tasks show``."""

    name: str | None = Field(None, description="Name of a task or a corpus.", json_schema_extra={"argument": True})
    manifest: Path | None = Field(None, description="YAML file of your own task or corpus.")


@command(TasksSettings)
def tasks(settings: TasksSettings) -> Result:
    """List the tasks and corpora that are available by name."""
    shipped = [load_task(name) for name in task_names()]
    corpora = [load_corpus(name) for name in corpus_names()]
    rows = [
        [
            task.name,
            "pair" if task.is_pair else "sentence",
            ", ".join(task.labels) or "score {:g} to {:g}".format(*task.score_range or ()),
            task.splits["train"],
            " + ".join(f"{task.splits[split]:,}" for split in task.dev_splits),
        ]
        for task in shipped
    ]
    as_json = [task.model_dump(mode="json") for task in shipped]
    result = Result({"tasks": as_json, "corpora": [corpus.model_dump(mode="json") for corpus in corpora]})
    result.table(["task", "input", "labels", "train rows", "dev rows"], rows)
    texts = [[corpus.name, corpus.description, corpus.language, corpus.licence] for corpus in corpora]
    return result.table(["corpus", "text", "language", "licence"], texts)


@command(ShowTaskSettings)
def tasks_show(settings: ShowTaskSettings) -> Result:
    """Check and print the manifest of a task or a corpus."""
    is_corpus = settings.name in corpus_names() if settings.manifest is None else _is_of_corpus(settings.manifest)
    manifest = (load_corpus if is_corpus else load_task)(settings.name, settings.manifest)
    # Without defaults the output is short and remains a valid manifest to start from.
    values = manifest.model_dump(mode="json", exclude_defaults=True)
    return Result(values).add(Text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True)))


def _is_of_corpus(path: Path) -> bool:
    """Returns whether a manifest has no key that only tasks have."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, DistillError):
        return False  # the loader reports what is wrong
    return isinstance(values, dict) and not values.keys() & (Task.model_fields.keys() - Corpus.model_fields.keys())
