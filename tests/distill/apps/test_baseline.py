"""``evaluate --baseline``: a bag of n-grams of the run's own training rows, beside its scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.apps.baseline import fit_baseline, scores_of
from distill.apps.systems import Rows, read_rows
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.students import tiny_config


def evaluated(*arguments: object) -> Any:
    done = invoke("evaluate", *arguments, "--baseline", "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_fitted_on_the_rows_of_the_run_and_scored_on_its_split(opinion_set: ExampleSet, tmp_path: Path) -> None:
    few = tiny_config(opinion_set.root, tmp_path / "run", where="source_row < 30", num_train_epochs=1)
    train(few, "distill train-student")
    rows, dev = read_rows(opinion_set, "train"), read_rows(opinion_set, "validation")
    target, metrics = opinion_set.record.target, opinion_set.record.metrics
    expected = scores_of(fit_baseline(read_rows(opinion_set, "train", np.arange(30)), target), dev, metrics)
    assert expected != scores_of(fit_baseline(rows, target), dev, metrics)
    assert evaluated(tmp_path / "run")["validation"]["baseline"]["scores"] == expected


def test_a_file_of_the_splits_rows_has_its_scores(work: Path, roles_run: Path) -> None:
    file = work / "data/roles/validation.jsonl"
    on_file, on_set = evaluated(roles_run, "--data", file), evaluated(roles_run)
    assert on_file[file.name]["baseline"] == on_set["validation"]["baseline"]
    assert on_set["validation"]["baseline"]["scores"].keys() == on_set["validation"]["gold"].keys()


def test_its_size_is_that_of_its_n_grams_and_weights() -> None:
    rows = Rows(
        ["ab", "cd", "ab", "cd"],
        None,
        np.array([0, 1] * 2),
        np.full(4, np.nan, np.float32),
        np.empty((4, 0), np.float32),
    )
    system = fit_baseline(rows, Target(kind="classes", names=("no", "yes")))
    words = len("ab\ncd")
    # Characters of a word have a space before and after it.
    grams = ["\n".join([f" {a}", a + b, f"{b} ", f" {a}{b}", f"{a}{b} ", f" {a}{b} "]) for a, b in ("ab", "cd")]
    num_terms = 2 + 12
    assert system.num_parameters == num_terms + num_terms + 1
    assert system.num_bytes == words + len("\n".join(grams)) + 4 * system.num_parameters


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_scores_are_predicted_by_a_ridge(ratings: dict[str, ExampleSet], kind: str, tmp_path: Path) -> None:
    train(tiny_config(ratings[kind].root, tmp_path / "run", num_train_epochs=1), "distill train-student")
    # The score is the number of the good word in the text, which a bag of words finds.
    assert evaluated(tmp_path / "run")["validation"]["baseline"]["scores"]["pearson"] > 0.9


def test_it_is_a_column_of_the_table(opinion_run: Path) -> None:
    done = invoke("evaluate", opinion_run, "--baseline")
    assert done.exit_code == 0, done.stderr
    assert "baseline" in done.stdout
