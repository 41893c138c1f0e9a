"""``distill quickstart``, ``report`` and ``serve``: what is built on both stages."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from distill.apps.app_settings import (
    Demo,
    QuickstartSettings,
    ReportSettings,
    ServeSettings,
)
from distill.commands.command import command, needs_libraries, needs_teacher_libraries
from distill.result import Result, Text
from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.record_file import teacher_in
from pipeline.training.run_record import kind_of_folder

if TYPE_CHECKING:
    from distill.apps.report.page import Page


@command(QuickstartSettings)
def quickstart(config: QuickstartSettings) -> Result:
    """Make a student from one file of texts and labels, and compare it with a baseline."""
    needs_teacher_libraries()
    if isinstance(config.source, Demo):
        return _demo(config.folder)
    from distill.apps.quickstart.quickstart import PAGE
    from distill.apps.quickstart.quickstart import quickstart as run_quickstart

    found = run_quickstart(config.source, config.folder)
    metrics, scores, sizes = found.look.metrics, found.scores, found.sizes
    rows = [[who, *(own[metric] for metric in metrics), console.size(sizes[who])] for who, own in scores.items()]
    values = {"findings": found.look.findings, "test_rows": found.num_tested, "scores": scores, "bytes": sizes}
    values |= {"judgements": found.judgements, "folder": str(config.folder), "next": found.commands}
    result = Result(values)
    result.table(
        ["", *metrics, "weights on disk"], rows, f"{found.num_tested:,} test rows, which no step has trained on"
    )
    for judgement in found.judgements:
        result.warn(judgement)
    result.add(Text("next:\n" + "".join(f"  {line}\n" for line in found.commands)))
    made = ["manifest", "splits", *(["teacher"] if config.source.has_teacher else []), "logit set"]
    if (config.folder / PAGE).is_file():
        made.append(PAGE)
    return result.note(f"{', '.join(made)} and student are in {config.folder}/")


def _demo(folder: Path) -> Result:
    from distill.apps.quickstart.demo import run_demo

    start = time.perf_counter()
    found = run_demo(folder)
    rows = [[r.task, r.majority, r.ngrams, r.students["cbow"], r.students["hybrid"], r.teacher] for r in found]
    columns = [
        "task",
        "guessing",
        "n-grams",
        "CBOW: words without order",
        "Hybrid: with order",
        "teacher: tiny BERT",
    ]
    title = "accuracy on validation rows, none of which is in training"
    result = Result([dataclasses.asdict(one) for one in found]).table(columns, rows, title)
    predictions = [[text, label] for one in found for text, label in one.predictions]
    result.table(["the same words", "prediction of the Hybrid student"], predictions)
    seconds = time.perf_counter() - start
    return result.note(f"{seconds:.0f} s. Data, teachers, logit sets and runs are in {folder}/")


@command(ReportSettings)
def report(settings: ReportSettings) -> Result:
    """Write an HTML report with pictures of a logit set, a run, a sweep or a cascade."""
    needs_libraries("distill report", "report", "matplotlib")
    from distill.apps.report.page import write_page
    from pipeline.sets.open import find_set

    folder = Path(settings.set_or_run)
    kind = _kind(folder)
    if kind is None and (problem := teacher_in(folder)):
        raise DataError(f"{folder}: {problem}")
    if kind is None:
        try:
            folder = find_set(settings.set_or_run, settings.store)
        except DataError as error:
            raise DataError(f"{folder}: not the folder of a run, a sweep or a cascade, and {error}") from error
    # The kind is part of the file name, because a run often has the same name as its set.
    path = settings.output or Path("-".join(filter(None, [folder.resolve().name, kind, "report.html"])))
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder. Give the name of a file.")
    page = _page(settings, folder, kind)
    write_page(path, page)
    result = Result({"path": str(path), "figures": page.figures()})
    return result.pairs(page.title, {page.kind: str(folder), "page": str(path)})


def _kind(folder: Path) -> str | None:
    """Returns what a folder holds: a run, a sweep or a cascade. None for a set."""
    from student.cascade.cascade_file import CASCADE_FILE

    return "cascade" if (folder / CASCADE_FILE).is_file() else kind_of_folder(folder)


def _page(settings: ReportSettings, folder: Path, kind: str | None) -> "Page":
    if kind == "cascade":
        from distill.apps.report.comparison_pages import cascade_page

        return cascade_page(folder)
    if kind == "sweep":
        from distill.apps.report.comparison_pages import sweep_page

        return sweep_page(settings, folder)
    if kind == "run":
        from distill.apps.report.run_page import run_page

        return run_page(settings, folder)
    from distill.apps.report.set_page import set_page

    return set_page(folder, settings.allow_unverified)


@command(ServeSettings)
def serve(config: ServeSettings) -> Result:
    """Serve students over HTTP: the API of text-embeddings-inference, the hub's API, and a web page."""
    needs_libraries("distill serve", "serve", "starlette", "threadpoolctl", "uvicorn")
    from distill.apps.serve.server import serve as serve_runs

    serve_runs(config)
    return Result()
