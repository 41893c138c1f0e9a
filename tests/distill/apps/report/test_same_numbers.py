"""The page of a run and ``distill evaluate --json`` have the same numbers, for every kind of row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.apps.app_settings import ReportSettings
from distill.apps.report.run_page import run_page
from pipeline.sets.kinds.examples import ExampleSet
from student.summary import evaluation_tables
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.multilabel import dump_topics
from tests.helpers.students import tiny_config
from tests.helpers.words import dump_entities, right_teacher, write_random_teacher

Make = Callable[[pytest.FixtureRequest, Path], Path]


def of_classes(request: pytest.FixtureRequest, _: Path) -> Path:
    found: ExampleSet = request.getfixturevalue("opinion_set")
    return found.root


def of_scores(request: pytest.FixtureRequest, _: Path) -> Path:
    root: Path = request.getfixturevalue("ratings")["score"].root
    return root


def of_bins(request: pytest.FixtureRequest, _: Path) -> Path:
    root: Path = request.getfixturevalue("ratings")["bins"].root
    return root


def of_words(_: pytest.FixtureRequest, folder: Path) -> Path:
    write_random_teacher(folder)
    return right_teacher(dump_entities(folder, token_vectors=False)).root


def of_several_labels(request: pytest.FixtureRequest, folder: Path) -> Path:
    return dump_topics(folder, request.getfixturevalue("work")).root


KINDS: dict[str, Make] = {
    "classes": of_classes,
    "scores": of_scores,
    "bins": of_bins,
    "several labels": of_several_labels,
    "words": of_words,
}
CONFUSION = "Confusion of the student"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_the_numbers_of_evaluate(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root, run = KINDS[kind](request, tmp_path), tmp_path / "run"
    train(tiny_config(root, run, num_train_epochs=1), "distill train-student")
    shown = invoke("evaluate", run, "--store", root.parent, "--baseline", "--json").stdout
    evaluation: dict[str, Any] = json.loads(shown)
    page = run_page(ReportSettings(set_or_run=str(run), store=root.parent), run)
    sections = {section.title: section for section in page.sections}
    tables = {table.title: [list(row) for row in table.rows] for table in sections["Scores"].tables}
    assert tables == {title: [list(row) for row in rows] for title, (_, rows) in evaluation_tables(evaluation).items()}
    warnings = [f"{split}: {line}" for split, parts in evaluation.items() for line in parts["judgements"]]
    assert sections["Scores"].text.splitlines() == warnings
    figures = {(figure["section"], figure["title"]): figure["rows"] for figure in page.figures()}
    for split, parts in evaluation.items():
        counts = {(row["gold"], row["student"]): row["n"] for row in figures.get((f"Split {split}", CONFUSION), [])}
        expected = {(a, b): n for a, row in parts["confusion"].items() for b, n in row.items() if n}
        assert counts == expected
        pairs = figures.get((f"Split {split}", "Student against teacher"), [])
        if parts["confusion"]:
            same = sum(row["n"] for row in pairs if row["student"] == row["teacher"])
            assert same / sum(row["n"] for row in pairs) == pytest.approx(parts["fidelity"]["agreement"])
