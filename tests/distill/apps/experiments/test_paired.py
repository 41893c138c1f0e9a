"""Systems compared row by row, against arithmetic."""

import numpy as np
import pytest

from distill.apps.experiments.measure import alike, difference, fidelity_to, kinds_of_rows, metric_of
from distill.apps.systems import Rows
from pipeline.arrays import Floats
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Bins

LABELS = Target(kind="classes", names=("a", "b"))
BINS = Target(kind="bins", names=("0", "1", "2"), bins=Bins(low=0, high=2, width=1))


def of_labels(gold: list[int], teacher: list[int]) -> Rows:
    texts = [str(number) for number in range(len(gold))]
    return Rows(texts, None, np.array(gold), np.full(len(gold), np.nan, np.float32), one_hot(teacher))


def of_texts(texts1: list[str], texts2: list[str] | None = None) -> Rows:
    nothing = np.empty((len(texts1), 0), np.float32)
    return Rows(texts1, texts2, np.zeros(len(texts1), np.int64), nothing[:, 0:1].sum(axis=1), nothing)


def one_hot(labels: list[int]) -> Floats:
    return np.eye(2, dtype=np.float32)[labels]


def test_a_difference_has_the_standard_error_of_its_rows() -> None:
    random = np.random.default_rng(3)
    gold = random.integers(2, size=900).tolist()
    ours, theirs = ([g if random.random() < share else 1 - g for g in gold] for share in (0.9, 0.7))
    rows = of_labels(gold, gold)
    found = difference(metric_of("accuracy", LABELS, rows), one_hot(ours)[None], one_hot(theirs)[None])
    apart_N = (np.array(ours) == gold).astype(float) - (np.array(theirs) == gold)
    assert found.mean == pytest.approx(apart_N.mean())
    assert found.error == pytest.approx(apart_N.std() / 30, rel=0.15)


def test_rows_on_which_both_are_wrong_do_not_count() -> None:
    rows = of_labels([0, 0, 1, 1], [0, 1, 1, 1])
    same = one_hot([0, 1, 0, 1])[None]
    for measure in (metric_of("accuracy", LABELS, rows), fidelity_to(LABELS, rows)):
        found = difference(measure, same, same)
        assert (found.mean, found.error) == (0, None)


def test_seeds_are_averaged_and_the_teacher_is_another_measure() -> None:
    rows = of_labels([0, 0, 1, 1], [1, 1, 1, 1])
    seeds_KNC = np.stack([one_hot([0, 0, 1, 1]), one_hot([1, 1, 1, 1])])
    other_KNC = one_hot([0, 0, 0, 0])[None]
    assert difference(metric_of("accuracy", LABELS, rows), seeds_KNC, other_KNC).mean == (1 + 0.5) / 2 - 0.5
    assert difference(fidelity_to(LABELS, rows), seeds_KNC, other_KNC).mean == (0.5 + 1) / 2


def test_scores_are_compared_with_a_teacher_of_bins() -> None:
    score_N = np.array([0, 1, 2, 0], np.float32)
    teacher_NC = 50 * np.eye(3, dtype=np.float32)[[2, 1, 0, 2]]  # the opposite of gold
    rows = Rows(list("wxyz"), None, np.full(4, NO_LABEL), score_N, teacher_NC)
    assert fidelity_to(BINS, rows)(score_N[:, None], np.arange(4)) == pytest.approx(-1)
    assert fidelity_to(BINS, rows)(teacher_NC, np.arange(4)) == pytest.approx(1)
    assert metric_of("pearson", BINS, rows)(teacher_NC, np.arange(4)) == pytest.approx(-1)
    assert alike(LABELS, one_hot([0, 1]), LABELS, one_hot([0, 0])) == 0.5


def test_kinds_of_rows_by_hand() -> None:
    texts = ["It isn't good", "nothing", "a knot of words and words again", "Good words", "never  mind the words"]
    train = of_texts(["it isn t a good word", "words of the nothing again and"])
    kinds = {
        kind: np.flatnonzero(is_kind_N).tolist() for kind, is_kind_N in kinds_of_rows(of_texts(texts), train).items()
    }
    assert kinds == {
        "with a negation": [0, 1, 4],
        "up to 2 words": [1, 3],
        "more than 4 words": [2],
        "with an unknown word": [2, 4],
    }


def test_both_sentences_of_a_pair_are_read() -> None:
    kinds = kinds_of_rows(of_texts(["a cat", "a dog"], ["no cat", "a cat"]), of_texts(["a cat"], ["no"]))
    assert kinds["with a negation"].tolist() == [True, False]
    assert kinds["with an unknown word"].tolist() == [False, True]
