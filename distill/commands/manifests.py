"""``distill tasks`` and ``distill corpora``: shipped ones, and manifests of users."""

from pathlib import Path

import yaml
from pydantic import BaseModel, Field

from distill.commands.command import command
from distill.result import Result, Text
from pipeline.config import Config
from pipeline.tasks.task import corpus_names, load_corpus, load_task, task_names


class TasksSettings(Config):
    """Flags of ``distill tasks``."""


class CorporaSettings(Config):
    """Flags of ``distill corpora``."""


class ShowTaskSettings(Config):
    """Flags of ``distill tasks show``."""

    name: str | None = Field(None, description="Name of a task.", json_schema_extra={"argument": True})
    manifest: Path | None = Field(None, description="YAML file of your own task.")


class ShowCorpusSettings(Config):
    """Flags of ``distill corpora show``."""

    name: str | None = Field(None, description="Name of a corpus.", json_schema_extra={"argument": True})
    manifest: Path | None = Field(None, description="YAML file of your own corpus.")


@command(TasksSettings)
def tasks(config: TasksSettings) -> Result:
    """List the tasks that are available by name."""
    shipped = [load_task(name) for name in task_names()]
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
    result = Result([task.model_dump(mode="json") for task in shipped])
    return result.table(["task", "input", "labels", "train rows", "dev rows"], rows)


@command(ShowTaskSettings)
def tasks_show(config: ShowTaskSettings) -> Result:
    """Check and print the manifest of a task."""
    return _manifest(load_task(config.name, config.manifest))


@command(CorporaSettings)
def corpora(config: CorporaSettings) -> Result:
    """List the corpora that are available by name."""
    shipped = [load_corpus(name) for name in corpus_names()]
    rows = [[corpus.name, corpus.description, corpus.language, corpus.licence] for corpus in shipped]
    result = Result([corpus.model_dump(mode="json") for corpus in shipped])
    return result.table(["corpus", "text", "language", "licence"], rows)


@command(ShowCorpusSettings)
def corpora_show(config: ShowCorpusSettings) -> Result:
    """Check and print the manifest of a corpus."""
    return _manifest(load_corpus(config.name, config.manifest))


def _manifest(manifest: BaseModel) -> Result:
    """A manifest as JSON, and as YAML that reads back."""
    # Without defaults the output is short and remains a valid manifest to start from.
    values = manifest.model_dump(mode="json", exclude_defaults=True)
    return Result(values).add(Text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True)))
