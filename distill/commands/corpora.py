"""The commands ``distill corpora`` and ``distill corpora show``."""

from pathlib import Path
from typing import Annotated

import typer

from distill.commands.options import reports_errors
from distill.commands.tasks import Json, print_manifest
from pipeline import console
from pipeline.tasks.corpus import corpus_names, load_corpus

app = typer.Typer(help="List the corpora, or show one.", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
@reports_errors
def corpora(context: typer.Context, json_output: Json = False) -> None:
    """List the corpora that need nothing but their name."""
    if context.invoked_subcommand is not None:
        return
    shipped = [load_corpus(name) for name in corpus_names()]
    if json_output:
        console.print_json([corpus.model_dump(mode="json") for corpus in shipped])
        return
    rows = [[corpus.name, corpus.description, corpus.language, corpus.licence] for corpus in shipped]
    console.print_table(["corpus", "text", "language", "licence"], rows)


@app.command()
@reports_errors
def show(
    name: Annotated[str | None, typer.Argument(help="Name of a corpus.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="YAML file with a corpus of your own.")] = None,
    json_output: Json = False,
) -> None:
    """Print a corpus's manifest, checked."""
    print_manifest(load_corpus(name, manifest), json_output)
