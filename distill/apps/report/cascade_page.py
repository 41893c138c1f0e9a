"""The page of a cascade: its stages, and its score at each cost, compared with each stage alone."""

from pathlib import Path
from typing import Any

from distill.apps.report import charts
from distill.apps.report.page import Page, Picture, Section, Table, clipped
from student.cascade.cascade_file import Measured, read_cascade

SCORES = {"accuracy": "accuracy", "agreement": "agreement with the last stage"}
COST = "cost (the last stage: 1)"


def cascade_page(folder: Path) -> Page:
    """Returns the page of a cascade.

    Raises:
        IntegrityError: if its file is damaged.
    """
    record = read_cascade(folder)
    stages = [(clipped(stage.source), stage.threshold, stage.cost) for stage in record.stages]
    columns = ("stage", "answers above a margin of", "cost")
    facts = {
        name.replace("_", " "): value for name, value in record.chosen.items() if isinstance(value, int | float | str)
    }
    sections = (
        Section("What it is", facts=facts, tables=(Table("Stages", columns, stages),)),
        *(_split(split, measured) for split, measured in record.measured.items()),
    )
    lead = f"A cascade of {len(stages)} stages. Each answers what it is sure of and hands on the rest."
    return Page("cascade", folder.resolve().name, lead, sections)


def _split(split: str, measured: Measured) -> Section:
    scores = SCORES if measured.cascade.accuracy is not None else {"agreement": SCORES["agreement"]}
    rows: list[tuple[Any, ...]] = [
        (clipped(one.stage), one.share, one.cost, *(getattr(one, name) for name in scores)) for one in measured.stages
    ]
    rows.append(("the cascade", 1.0, measured.cascade.cost, *(getattr(measured.cascade, name) for name in scores)))
    heads = ("alone", "share of the rows that it answers", "cost", *scores.values())
    return Section(
        f"The rows of {split}",
        f"{measured.rows:,} rows, none of which chose a threshold.",
        pictures=tuple(_curve(measured, name, title) for name, title in scores.items()),
        tables=(Table("Stages and cascade", heads, rows),),
    )


def _curve(measured: Measured, score: str, title: str) -> Picture:
    rows = [{"cost": point.cost, score: getattr(point, score)} for point in measured.curve]
    named = [(Path(one.stage).name, one.cost, getattr(one, score)) for one in measured.stages]
    named.append(("cascade", measured.cascade.cost, getattr(measured.cascade, score)))
    line = [(point["cost"], point[score]) for point in rows]
    caption = (
        "The line is the cascade with other thresholds. They were chosen on held-out training rows, so the line can "
        "fall here and there."
    )
    return Picture(f"{title.capitalize()} and cost", charts.trade_off(line, named, COST, title), caption, rows)
