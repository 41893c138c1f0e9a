"""The scores of a bag of words, and the warning about a teacher below them."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from distill.apps.experiments.baselines import BASELINES, Baseline, majority
from distill.apps.linear import LEAST, pair_features
from distill.apps.systems import Rows
from pipeline.arrays import Floats
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Bins
from teacher.tiny import create_tiny_bert

LABELS = Target(kind="classes", names=("bad", "good", "unheard"))
SCORE = Target(kind="score", names=("score",))
APART = Target(kind="labels", names=("praise", "music", "never", "always"))
NO_TEACHER: Floats = np.empty((0, 0), np.float32)
OF_WORDS = [baseline for name, baseline in BASELINES.items() if name in ("TF-IDF", "hashed bigrams", "n-grams")]


def labelled(texts: list[str], labels: list[int], seconds: list[str] | None = None) -> Rows:
    return Rows(texts, seconds, np.array(labels), np.full(len(labels), np.nan, np.float32), NO_TEACHER)


def scored(texts: list[str], scores: list[float]) -> Rows:
    return Rows(texts, None, np.full(len(scores), NO_LABEL), np.array(scores, np.float32), NO_TEACHER)


def test_majority_is_the_commonest_label_of_train_or_the_mean() -> None:
    system = BASELINES["majority"].fit(labelled(["a", "b", "c"], [1, 0, 1]), LABELS, Path())
    assert system.logits(["x", "y"], None).argmax(axis=1).tolist() == [1, 1]
    assert (system.num_parameters, system.num_bytes) == (0, 0)
    mean = BASELINES["majority"].fit(scored(["a", "b"], [1, 4]), SCORE, Path())
    assert mean.logits(["x"], None).tolist() == [[2.5]]


@pytest.mark.parametrize("baseline", OF_WORDS)
def test_words_decide_and_a_label_without_rows_is_never_said(baseline: Baseline) -> None:
    system = baseline.fit(
        labelled(["so lovely", "so awful", "really lovely", "really awful"], [1, 0, 1, 0]), LABELS, Path()
    )
    logits_NC = system.logits(["quite lovely", "quite awful"], None)
    assert logits_NC.dtype == np.float32
    assert logits_NC.argmax(axis=1).tolist() == [1, 0]
    assert logits_NC[:, 2].tolist() == [LEAST, LEAST]


@pytest.mark.parametrize("baseline", OF_WORDS)
def test_labels_hold_each_by_itself(baseline: Baseline) -> None:
    texts = ["lovely music", "lovely food", "dull music", "dull food"] * 5
    label_NC = np.array([["lovely" in text, "music" in text, False, True] for text in texts]).astype(np.int64)
    train = Rows(texts, None, label_NC, np.full(len(texts), np.nan, np.float32), NO_TEACHER)
    logits_NC = baseline.fit(train, APART, Path()).logits(["lovely music", "dull food", "lovely food"], None)
    assert (logits_NC[:, :2] > 0).tolist() == [[True, True], [False, False], [True, False]]
    assert logits_NC[:, 2:].tolist() == [[LEAST, -LEAST]] * 3
    majority = BASELINES["majority"].fit(Rows(texts[:3], None, label_NC[:3], train.score_N, NO_TEACHER), APART, Path())
    assert (majority.logits(["x"], None) > 0).tolist() == [[True, True, False, True]]


@pytest.mark.parametrize("baseline", OF_WORDS)
def test_pairs_of_words_tell_what_words_alone_do_not(baseline: Baseline) -> None:
    texts = ["not good but bad", "not bad but good"]  # the same words
    system = baseline.fit(labelled(texts * 20, [0, 1] * 20), LABELS, Path())
    assert system.logits(texts, None).argmax(axis=1).tolist() == [0, 1]


@pytest.mark.parametrize("baseline", OF_WORDS)
def test_of_pairs_it_is_their_likeness_that_is_seen(baseline: Baseline) -> None:
    words = ["ash tree", "birch wood", "cold cave", "dark door"]
    others = words[1:] + words[:1]
    train = labelled(words * 2, [1] * 4 + [0] * 4, words + others)
    logits_NC = baseline.fit(train, LABELS, Path()).logits(["ash tree", "ash tree"], ["ash tree", "dark door"])
    assert logits_NC.argmax(axis=1).tolist() == [1, 0]


@pytest.mark.parametrize("baseline", OF_WORDS)
def test_scores_are_a_regression(baseline: Baseline) -> None:
    system = baseline.fit(scored(["low", "middle", "high"] * 10, [0, 2, 4] * 10), SCORE, Path())
    low, middle, high = system.logits(["low", "middle", "high"], None)[:, 0]
    assert (low, middle, high) == pytest.approx((0, 2, 4), abs=0.5)


def test_sizes_of_tfidf_are_those_of_its_words() -> None:
    system = BASELINES["TF-IDF"].fit(labelled(["ab cd", "cd"], [0, 1]), LABELS, Path())
    words = len("ab\nab cd\ncd")
    assert (system.num_parameters, system.num_bytes) == (3 + 3 + 1, words + 4 * (3 + 3 + 1))


def test_pair_features_are_the_same_dense_and_sparse() -> None:
    u_NF, w_NF = np.array([[1.0, 0, 2]]), np.array([[3.0, 1, 1]])
    wanted = [[2, 1, 1, 3, 0, 2, 5]]
    assert pair_features(u_NF, w_NF).tolist() == wanted
    assert pair_features(sparse.csr_matrix(u_NF), sparse.csr_matrix(w_NF)).toarray().tolist() == wanted


def test_what_is_not_installed_is_told() -> None:
    assert Baseline(majority, "x", ("numpy", "no_such_library")).missing == ["no_such_library"]


@pytest.mark.parametrize(
    ("target", "teacher_NC"),
    [
        (Target(kind="classes", names=("bad", "good")), [[3.0, -3.0], [-3.0, 3.0]]),
        (Target(kind="labels", names=("sad", "glad")), [[3.0, -3.0], [-3.0, 3.0]]),
        (SCORE, [[0.5], [4.5]]),
        (Target(kind="bins", names=("0", "4"), bins=Bins(low=0, high=4, width=4)), [[8.0, -8.0], [-8.0, 8.0]]),
    ],
)
def test_it_learns_the_teachers_outputs_and_not_gold(target: Target, teacher_NC: list[list[float]]) -> None:
    texts, outputs_NC = ["so awful", "so lovely"] * 9, np.array(teacher_NC * 9, np.float32)
    # Gold says the opposite.
    gold = np.array([1, 0] * 9) if target.has_classes else np.array([[0, 1], [1, 0]] * 9)
    train = Rows(texts, None, gold, np.array([4, 0] * 9, np.float32), outputs_NC)
    system = BASELINES["n-grams + teacher"].fit(train, target, Path())
    awful_C, lovely_C = system.logits(["quite awful", "quite lovely"], None)
    if target.has_labels:
        assert system.target == target
        assert awful_C[0] > awful_C[1]
        assert lovely_C[1] > lovely_C[0]
    else:
        assert system.target.kind == "score"
        assert awful_C[0] + 1 < lovely_C[0]


@pytest.mark.slow
def test_vectors_of_an_encoder_are_made_once_and_read(work: Path, tmp_path: Path) -> None:
    pytest.importorskip("model2vec")
    pytest.importorskip("skeletoken")
    from distill.apps.experiments.baselines import distil

    folder = distil(str(work / "bert"), tmp_path / "model2vec")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert distil(str(work / "bert"), tmp_path / "model2vec") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    create_tiny_bert(tmp_path / "other", ["great superb", "awful dull"], hidden_size=32)
    assert distil(str(tmp_path / "other"), tmp_path / "model2vec") != folder
    train = labelled(["great superb", "awful dull", "great lovely", "awful rude"] * 10, [1, 0] * 20)
    for name in ("model2vec", "model2vec, tuned"):
        system = BASELINES[name].fit(train, LABELS, folder)
        logits_NC = system.logits(["great", "awful"], None)
        assert logits_NC.dtype == np.float32
        assert logits_NC.argmax(axis=1).tolist() == [1, 0]
        assert logits_NC[:, 2].tolist() == [LEAST, LEAST]
        assert system.num_bytes > system.num_parameters
