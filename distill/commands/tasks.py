"""The commands ``distill tasks`` and ``distill tasks show``."""

from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import BaseModel

from distill.commands.options import reports_errors
from pipeline import console
from pipeline.tasks.task import load_task, task_names

app = typer.Typer(help="List the tasks, or show one.", invoke_without_command=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.callback()
@reports_errors
def tasks(context: typer.Context, json_output: Json = False) -> None:
    """List the tasks that need nothing but their name."""
    if context.invoked_subcommand is not None:
        return
    shipped = [load_task(name) for name in task_names()]
    if json_output:
        console.print_json([task.model_dump(mode="json") for task in shipped])
        return
    console.print_table(
        ["task", "input", "labels", "train rows", "dev rows"],
        [
            [
                task.name,
                "pair" if task.is_pair else "sentence",
                ", ".join(task.labels) or "score {:g} to {:g}".format(*task.score_range or ()),
                task.splits["train"],
                " + ".join(f"{task.splits[split]:,}" for split in task.dev_splits),
            ]
            for task in shipped
        ],
    )


@app.command()
@reports_errors
def show(
    name: Annotated[str | None, typer.Argument(help="Name of a task.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="YAML file with a task of your own.")] = None,
    json_output: Json = False,
) -> None:
    """Print a task's manifest, checked."""
    print_manifest(load_task(name, manifest), json_output)


def print_manifest(manifest: BaseModel, json_output: bool) -> None:
    """Prints a manifest, as YAML that reads back or as JSON."""
    values = manifest.model_dump(mode="json", exclude_defaults=True)
    if json_output:
        console.print_json(values)
    else:
        typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip())
