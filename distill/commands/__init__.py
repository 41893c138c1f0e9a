"""The command line: parses and calls, nothing else. torch and its friends are imported inside the commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from distill.commands import (
    bench,
    corpora,
    demo,
    diff,
    filters,
    imported,
    report,
    results,
    sharing,
    sql,
    student,
    tasks,
    teacher,
    tokens,
    words,
)
from distill.commands import serve as server
from distill.commands.help import Command, Commands
from distill.commands.launched import end_with_launcher

COMMANDS = {
    "Teachers": {
        "finetune-teacher": teacher.finetune_teacher,
        "augment": teacher.augment,
        "teacher-dump": teacher.teacher_dump,
        "check": teacher.check,
    },
    "Logit sets": {
        "import": imported.import_answers,
        "verify": sharing.verify,
        "card": sharing.card,
        "diff": diff.diff,
        "index": sql.index,
        "sql": sql.sql,
        "budget": tokens.budget,
        "recode": tokens.recode,
        "push": sharing.push,
        "pull": sharing.pull,
        "join": sharing.join,
    },
    "Students": {
        "pretrain-student": student.pretrain_student,
        "filters": filters.filters,
        "train-student": student.train_student,
        "sweep": student.sweep,
        "evaluate": student.evaluate,
        "describe": student.describe,
        "masked-words": words.masked_words,
        "reproduce": student.reproduce,
    },
    "Answers": {
        "predict": student.predict,
        "certify": student.certify,
        "serve": server.serve,
        "export": student.export,
        "bench": bench.bench,
    },
    "All together": {
        "demo": demo.demo,
        "results": results.results,
        "report": report.report,
    },
}
app = typer.Typer(
    name="distill",
    cls=Commands,
    help="Distil BERT offline: write a teacher's logits once, train tiny students from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tasks.app, name="tasks", rich_help_panel="Data")
app.add_typer(corpora.app, name="corpora", rich_help_panel="Data")
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=panel)(command)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"distill {version('distill-offline')}")
        raise typer.Exit


@app.callback()
def distill(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Distil BERT offline."""
    end_with_launcher()
