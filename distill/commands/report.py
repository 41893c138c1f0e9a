"""The command ``distill report``: a page about a set, a run or a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING

from distill.apps.report.config import ReportConfig
from distill.commands.options import needs_libraries, takes
from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.training.run_record import kind_of_folder

if TYPE_CHECKING:
    from distill.apps.report.page import Page


@takes(ReportConfig)
def report(config: ReportConfig) -> None:
    """Make an HTML page with pictures of a logit set, a run or a sweep."""
    needs_libraries("distill report", "report", "jinja2", "matplotlib")
    from distill.apps.report.page import render
    from pipeline.files import make_folder, write_text_alone

    folder = _folder(config)
    kind = kind_of_folder(folder)  # a run is often called as its set
    name = folder.resolve().name if kind is None else f"{folder.resolve().name}-{kind}"
    path = config.output or Path(f"{name}-report.html")
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; give the name of a file")
    make_folder(path.parent)
    page = _page(config, folder)
    write_text_alone(path, render(page))
    if config.json_output:
        console.print_json({"path": str(path), "figures": page.figures()})
    else:
        console.print_pairs(page.title, {page.kind: str(folder), "page": str(path)})


def _folder(config: ReportConfig) -> Path:
    """The folder of a run or a sweep, or else of a set."""
    from pipeline.sets.reader import find_set

    path = Path(config.set_or_run)
    if kind_of_folder(path) is not None:
        return path
    try:
        return find_set(config.set_or_run, config.store)
    except DataError as error:
        raise DataError(f"{config.set_or_run}: not the folder of a run or a sweep, and {error}") from error


def _page(config: ReportConfig, folder: Path) -> "Page":
    kind = kind_of_folder(folder)
    if kind == "sweep":
        from distill.apps.report.sweep import sweep_page

        return sweep_page(config, folder)
    if kind == "run":
        from distill.apps.report.run import run_page

        return run_page(config, folder)
    from distill.apps.report.set_report import set_page

    return set_page(folder, config.allow_unverified)
