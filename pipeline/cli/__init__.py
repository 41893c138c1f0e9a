"""The command line: parses and calls, nothing else. torch and its friends are imported inside the commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from pipeline.cli import (
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
from pipeline.cli import serve as server
from pipeline.cli.help import Command
from pipeline.cli.launched import end_with_launcher

COMMANDS = {
    "finetune-teacher": teacher.finetune_teacher,
    "augment": teacher.augment,
    "teacher-dump": teacher.teacher_dump,
    "import": imported.import_answers,
    "check": teacher.check,
    "recode": tokens.recode,
    "budget": tokens.budget,
    "verify": sharing.verify,
    "card": sharing.card,
    "diff": diff.diff,
    "push": sharing.push,
    "pull": sharing.pull,
    "join": sharing.join,
    "index": sql.index,
    "sql": sql.sql,
    "pretrain-student": student.pretrain_student,
    "filters": filters.filters,
    "train-student": student.train_student,
    "sweep": student.sweep,
    "evaluate": student.evaluate,
    "reproduce": student.reproduce,
    "describe": student.describe,
    "export": student.export,
    "certify": student.certify,
    "predict": student.predict,
    "masked-words": words.masked_words,
    "serve": server.serve,
    "report": report.report,
    "results": results.results,
    "bench": bench.bench,
    "demo": demo.demo,
}
app = typer.Typer(
    name="distill",
    help="Distil BERT offline: write a teacher's logits once, train tiny students from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tasks.app, name="tasks")
app.add_typer(corpora.app, name="corpora")
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)


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
