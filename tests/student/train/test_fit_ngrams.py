"""N-grams fitted beside a trained network: the regression, the weights of both, and the flag's refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import Ridge

from pipeline.errors import ConfigError
from pipeline.file_names import RUN_RECORD
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL, Target
from student import fit_ngrams
from student.data import load_dev
from student.evaluate import evaluate
from student.export.onnx_file import check_exportable
from student.fit_ngrams import _goals, _ridge, _weighed
from student.lessons.examples import student_logits
from student.losses.logit_losses import task_loss
from student.model.build_config import build_token_label_config
from student.model.student import Student
from student.run_settings import EvaluateSettings
from student.settings import Loss, TrainSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config


def settings(logit_set: ExampleSet, folder: Path, **changes: Any) -> TrainSettings:
    values = {"ngrams": True, "matrix_size": None, "embedding": "cbow"} | changes
    return tiny_config(logit_set.root, folder, **values)


def test_the_regression_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    x_NF = sparse.random(60, 500, density=0.05, random_state=0, dtype=np.float32, format="csr")
    y_NC = random.normal(size=(60, 3)).astype(np.float32)
    expected = Ridge(alpha=0.7, fit_intercept=False).fit(x_NF.toarray(), y_NC).coef_.T
    np.testing.assert_allclose(_ridge(x_NF, y_NC, 0.7), expected, atol=2e-3)


def test_neither_the_network_nor_the_ngrams_alone_have_less_loss(opinion_set: ExampleSet) -> None:
    rows = load_dev(opinion_set, "validation")
    target, random = Target(kind="classes", names=("bad", "good")), np.random.default_rng(0)
    gold_NC = np.eye(2)[rows.label_N]
    network_NC, output_NC = ((gold_NC + random.normal(0, 1.5, gold_NC.shape)).astype(np.float32) for _ in range(2))
    found = _weighed(Loss(), target, rows, network_NC, output_NC, output_NC)
    gold, teacher = torch.from_numpy(rows.label_N), torch.from_numpy(rows.teacher_NC)
    for network, ngrams in [(1, 0), (0, 1), (found.network, 0), (0, found.ngrams), (1, 1)]:
        logits_NC = torch.from_numpy(network * network_NC + ngrams * output_NC)
        assert found.loss <= float(task_loss(target, logits_NC, teacher, gold, 0.5)) + 1e-6


def test_a_student_adds_them_and_a_repeated_run_finds_the_same(opinion_set: ExampleSet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = train(settings(opinion_set, run), "command")
    student = Student.load(run)
    assert student.ngrams is not None
    assert int(student.ngrams.weight_GRC.abs().amax()) == fit_ngrams.LARGEST
    assert evaluate(EvaluateSettings(run=run, store=opinion_set.root.parent)) == record["result"]["evaluation"]
    rows = load_dev(opinion_set, "validation")
    logits_NC = student_logits(student, rows)
    plain = tmp_path / "plain"
    train(settings(opinion_set, plain, ngrams=False), "command")
    alone_NC = student_logits(Student.load(plain), rows)
    ids = rows.sequences[0]
    added_NC = student.ngrams(torch.from_numpy(ids.flat), torch.from_numpy(ids.offsets)).numpy()
    np.testing.assert_allclose(logits_NC, float(student.ngrams.network) * alone_NC + added_NC, rtol=1e-4, atol=1e-5)
    # A run that was killed after its n-grams were saved, and before its record was.
    unfinished = json.loads((run / RUN_RECORD).read_text()) | {"state": "running"}
    removed = ("result", "record_sha256")
    (run / RUN_RECORD).write_text(json.dumps({k: v for k, v in unfinished.items() if k not in removed}))
    train(settings(opinion_set, run), "command")
    np.testing.assert_array_equal(student_logits(Student.load(run), rows), logits_NC)


def test_they_are_left_out_at_a_weight_of_zero(
    opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit_ngrams, "_goals", lambda *arguments: 1 - _goals(*arguments))  # the opposite is learned
    train(settings(opinion_set, tmp_path / "run"), "command")
    assert Student.load(tmp_path / "run").ngrams is None
    assert "left out" in capsys.readouterr().err


def test_pairs_have_them(roles_set: ExampleSet, tmp_path: Path) -> None:
    train(settings(roles_set, tmp_path / "run", held_out=0.2), "command")
    student = Student.load(tmp_path / "run")
    assert student.ngrams is not None
    assert len(student.ngrams.weight_GRC) == 3


def test_classes_that_count_the_same_have_the_same_mean(
    opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_ngrams, "PENALTY_OF_CHOICE", 1e9)  # so only the means are left in the bias
    flags = {"class_weights": "balanced", "alpha": 1.0, "where": "label = 0 or source_row % 5 = 0"}
    train(settings(opinion_set, tmp_path / "run", **flags), "")
    part = Student.load(tmp_path / "run").ngrams
    assert part is not None
    assert part.bias_C[0] == pytest.approx(float(part.bias_C[1]))


def test_classes_that_count_the_same_have_a_bias(opinion_set: ExampleSet) -> None:
    rows = load_dev(opinion_set, "validation")
    target, random = Target(kind="classes", names=("bad", "good")), np.random.default_rng(0)
    noise_NC = random.normal(0, 1, (len(rows), 2))
    output_NC = (np.eye(2)[rows.label_N] + noise_NC + [0, 3]).astype(np.float32)
    nothing_NC = np.zeros_like(output_NC)
    plain, balanced = (
        _weighed(Loss(alpha=1, class_weights=weights), target, rows, nothing_NC, output_NC, output_NC)
        for weights in (None, "balanced")
    )
    np.testing.assert_array_equal(plain.bias_C, 0)
    assert balanced.bias_C[0] > 0 > balanced.bias_C[1]
    assert balanced.ngrams > plain.ngrams


def test_few_rows_of_a_rare_class_do_not_take_the_network_out(opinion_set: ExampleSet) -> None:
    rows = load_dev(opinion_set, "validation").taken(np.arange(10))
    target = Target(kind="classes", names=("bad", "good"))
    wrong_NC = -0.1 * np.eye(2, dtype=np.float32)[rows.label_N]
    nothing_NC = np.zeros_like(wrong_NC)
    plain, balanced = (
        _weighed(Loss(alpha=1, class_weights=weights), target, rows, wrong_NC, nothing_NC, nothing_NC)
        for weights in (None, "balanced")
    )
    assert plain.network == 0
    assert 0 < balanced.network < 1


def test_goals_are_mixtures_of_gold_and_teacher(opinion_set: ExampleSet) -> None:
    rows = load_dev(opinion_set, "validation").taken(np.arange(3))
    rows = replace(rows, label_N=np.array([0, 1, NO_LABEL]), score_N=np.array([1, 2, np.nan], np.float32))
    classes = replace(rows, teacher_NC=np.log(np.array([[1, 3], [1, 1], [1, 3]], np.float32)))
    expected = [[0.25 * 1 + 0.75 / 4, 0.75 * 3 / 4], [0.75 / 2, 0.25 + 0.75 / 2], [1 / 4, 3 / 4]]
    target = Target(kind="classes", names=("bad", "good"))
    np.testing.assert_allclose(_goals(target, classes, 0.25), expected, rtol=1e-6)
    scores = replace(rows, teacher_NC=np.array([[3], [4], [5]], np.float32))
    target = Target(kind="score", names=("score",))
    np.testing.assert_allclose(_goals(target, scores, 0.25), [[0.25 + 2.25], [0.5 + 3.0], [5.0]], rtol=1e-6)
    labels = replace(
        rows, label_N=np.array([[1, 0], [1, 1], [NO_LABEL, NO_LABEL]]), teacher_NC=np.zeros((3, 2), np.float32)
    )
    target = Target(kind="labels", names=("bad", "good"))
    np.testing.assert_allclose(_goals(target, labels, 0.5), [[0.5, -0.5], [0.5, 0.5], [0.0, 0.0]], atol=1e-6)


def test_what_cannot_have_them_is_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--ngrams", "bert")):
        tiny_config(opinion_set.root, tmp_path, ngrams=True, embedding="bert", matrix_size=None)
    with pytest.raises(ConfigError, match=naming("--ngrams", "--tasks")):
        TrainSettings.from_flags(tasks="a,b", ngrams=True)
    with pytest.raises(ConfigError, match=naming("--ngrams", "labelled words")):
        build_token_label_config(tiny_config(opinion_set.root, tmp_path, ngrams=True), {"metrics": ()})
    train(settings(opinion_set, tmp_path / "run"), "command")
    with pytest.raises(ConfigError, match=naming("--onnx", "--ngrams")):
        check_exportable(Student.load(tmp_path / "run"))
