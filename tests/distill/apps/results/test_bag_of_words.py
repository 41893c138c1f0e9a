"""What a bag of words reaches, beside which a teacher is told to be weak."""

import dataclasses
from pathlib import Path

import pytest

from distill.apps.results import bag_of_words
from distill.apps.results.bag_of_words import bag_of_words_scores
from distill.apps.results.rows import Rows, read_rows
from pipeline.sets.reader import ExampleSet
from tests.helpers.commands import invoke


def test_it_is_the_baseline_on_the_dev_rows(opinion_set: ExampleSet, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = bag_of_words_scores(opinion_set)
    assert scores.keys() == {"validation"}
    assert scores["validation"]["accuracy"] > 0.4
    monkeypatch.setattr(bag_of_words, "MAX_CHARACTERS", 100)
    assert bag_of_words_scores(opinion_set) == {}


def test_texts_without_a_word_have_none(opinion_set: ExampleSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def letters(logit_set: ExampleSet, split: str) -> Rows:
        rows = read_rows(logit_set, split)
        return dataclasses.replace(rows, texts1=["a b"] * len(rows))

    monkeypatch.setattr(bag_of_words, "read_rows", letters)
    assert bag_of_words_scores(opinion_set) == {}


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_scores_have_one_too(kind: str, ratings: dict[str, ExampleSet]) -> None:
    """A sentence's score is the number of one of its words, so that a bag of words has nearly all of it."""
    assert bag_of_words_scores(ratings[kind])["validation"]["pearson"] > 0.9


def test_a_dump_tells_a_weak_teacher(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    root = ratings["score"].root
    flags = ["--manifest", root.parent.parent / "ratings.yaml", "--data", root.parent.parent, "--max-seq-length", 32]
    teacher = ["--model-name-or-path", root.parent.parent / "teacher-score", "--no-token-vectors", "--store", tmp_path]
    result = invoke("teacher-dump", *flags, *teacher)
    assert result.exit_code == 0, result.stderr
    assert "validation: " in result.stderr
