from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.data import load_examples
from student.evaluate import evaluate
from student.lessons.examples import student_logits
from student.model.student import Student
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings
from student.train import train
from tests.helpers.students import tiny_config


@pytest.fixture(scope="module", params=["score", "bins"])
def trained(
    request: pytest.FixtureRequest, ratings: dict[str, ExampleSet], tmp_path_factory: pytest.TempPathFactory
) -> tuple[ExampleSet, Path]:
    """A set and a student trained on its gold scores."""
    logit_set, run = ratings[request.param], tmp_path_factory.mktemp(request.param)
    changes = {"alpha": 1.0, "num_train_epochs": 60, "early_stopping_patience": 60, "hidden_dropout": 0.0}
    train(tiny_config(logit_set.root, run, **changes), "")
    return logit_set, run


def scores(logit_set: ExampleSet, run: Path) -> np.ndarray:
    """Each row's score by hand: the logit, or the mean of the bins weighed by their probabilities."""
    logits_NC = student_logits(Student.load(run), load_examples(logit_set, "validation"))
    if logit_set.record.target.kind == "score":
        return np.asarray(logits_NC[:, 0])
    return np.asarray(sum(p * middle for p, middle in zip(softmax(logits_NC).T, range(1, 7), strict=True)))


def test_the_target_is_what_was_asked_for(ratings: dict[str, ExampleSet]) -> None:
    targets = {kind: logit_set.record.target for kind, logit_set in ratings.items()}
    assert {kind: (target.kind, target.num_logits) for kind, target in targets.items()} == {
        "score": ("score", 1),
        "bins": ("bins", 6),
    }


def test_scores_are_learned_and_measured_by_correlations(trained: tuple[ExampleSet, Path]) -> None:
    logit_set, run = trained
    gold_N, score_N = load_examples(logit_set, "validation").score_N, scores(logit_set, run)
    gold = evaluate(EvaluateSettings(run=run))["validation"]["gold"]
    assert gold == {
        "pearson": pytest.approx(stats.pearsonr(score_N, gold_N).statistic, abs=1e-5),
        "spearmanr": pytest.approx(stats.spearmanr(score_N, gold_N).statistic, abs=1e-3),
    }
    assert gold["pearson"] > 0.8
    assert np.abs(score_N - gold_N).mean() < 1


def test_guessing_does_not_correlate_with_scores(trained: tuple[ExampleSet, Path]) -> None:
    result = evaluate(EvaluateSettings(run=trained[1]))["validation"]
    assert result["majority"] == {"pearson": 0, "spearmanr": 0}
    expected = {"score": {"pearson", "rmse"}, "bins": {"agreement", "kl"}}[trained[0].record.target.kind]
    assert result["fidelity"].keys() == expected


def test_prediction_is_a_score_on_the_tasks_scale(trained: tuple[ExampleSet, Path]) -> None:
    logit_set, run = trained
    texts = logit_set.read("validation", ("sentence1",)).column("sentence1").to_pylist()
    results = Predictor(run)(texts)
    assert all(result.keys() == {"score"} for result in results)
    np.testing.assert_allclose([result["score"] for result in results], scores(logit_set, run), atol=1e-4)


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_the_teachers_scores_can_be_learned_too(ratings: dict[str, ExampleSet], tmp_path: Path, kind: str) -> None:
    changes = {"alpha": 0.0, "num_train_epochs": 40, "early_stopping_patience": 40, "hidden_dropout": 0.0}
    history = train(tiny_config(ratings[kind].root, tmp_path, **changes), "")["result"]["history"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    fidelity = evaluate(EvaluateSettings(run=tmp_path))["validation"]["fidelity"]
    assert all(np.isfinite(list(fidelity.values())))
