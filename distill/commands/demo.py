"""The command ``distill demo``: the whole product on two small tasks."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from distill.commands.options import needs_teacher_libraries, reports_errors
from pipeline import console


@reports_errors
def demo(
    output_dir: Annotated[Path, typer.Option(help="Folder for data, teachers, logit sets and runs.")] = Path("demo"),
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run the whole product on two small generated tasks, offline, in a few minutes."""
    from distill.apps.demo.run import run_demo

    needs_teacher_libraries()
    start = time.perf_counter()
    results = run_demo(output_dir)
    if json_output:
        console.print_json([dataclasses.asdict(result) for result in results])
        return
    rows = [[r.task, r.majority, r.students["cbow"], r.students["hybrid"], r.teacher] for r in results]
    columns = ["task", "guessing", "CBOW: words without order", "Hybrid: with order", "teacher: tiny BERT"]
    console.print_table(columns, rows, title="accuracy on held-out rows")
    predictions = [[text, label] for result in results for text, label in result.predictions]
    console.print_table(["the same words", "what the Hybrid student says"], predictions)
    console.note(f"{time.perf_counter() - start:.0f} s; data, teachers, logit sets and runs lie in {output_dir}/")
