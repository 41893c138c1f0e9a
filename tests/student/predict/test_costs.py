import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.file_names import RUN_RECORD
from pipeline.tasks.target import Target, softmax
from student.evaluate import evaluate, evaluate_pretrained
from student.predict.labels import chosen, label_bias, read_costs
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings
from tests.helpers.commands import invoke
from tests.helpers.messages import naming

CLASSES = Target(kind="classes", names=("ham", "spam", "fraud"))
APART = Target(kind="labels", names=("ham", "spam", "fraud"))


def test_the_label_that_costs_least_in_the_mean_is_chosen(tmp_path: Path) -> None:
    logits_NC = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    cost_C = np.array([1, 2, 7])
    expected_NC = softmax(logits_NC) @ (cost_C[:, None] * (1 - np.eye(3)))  # of saying k where c is missed
    said = chosen(CLASSES, logits_NC, bias_C=label_bias(tmp_path, CLASSES, {"fraud": 7, "spam": 2})).to_pylist()
    assert said == [CLASSES.names[k] for k in expected_NC.argmin(axis=1)]
    assert said != chosen(CLASSES, logits_NC).to_pylist()
    assert label_bias(tmp_path, CLASSES, {}) is None


def test_a_dear_label_needs_smaller_odds_than_its_threshold(tmp_path: Path) -> None:
    record = {"state": "finished", "settings": {}, "command": "", "result": {"thresholds": {"spam": 0.75}}}
    (tmp_path / RUN_RECORD).write_text(json.dumps(record))  # odds of 3
    bias_C = label_bias(tmp_path, APART, {"fraud": 4, "spam": 2})
    assert bias_C == pytest.approx([0, math.log(2 / 3), math.log(4)])
    logits_NC = np.log(np.array([[1.01, 1.49, 0.26], [0.99, 1.51, 0.24]], np.float32))
    assert chosen(APART, logits_NC, bias_C=bias_C).to_pylist() == [["ham", "fraud"], ["spam"]]


def test_costs_as_flags() -> None:
    assert read_costs(("fraud=10", "a=b=0.5")) == {"fraud": 10, "a=b": 0.5}
    for wrong in (("fraud",), ("fraud=dear",), ("fraud=1", "fraud=2")):
        with pytest.raises(ConfigError, match=naming(f"--cost {wrong[-1]}: ", "LABEL=NUMBER")):
            read_costs(wrong)


def test_costs_of_something_else_are_refused(tmp_path: Path) -> None:
    for costs, named in (
        ({"frod": 1}, ("--cost: ", "'frod'", "'fraud'")),
        ({"spam": 0}, ("--cost spam=0: ",)),
        ({"ham": math.inf}, ("--cost ham=inf: ",)),
    ):
        with pytest.raises(ConfigError, match=naming(*named)):
            label_bias(tmp_path, CLASSES, costs)
    with pytest.raises(ConfigError, match=naming("--cost: ", "scores")):
        label_bias(tmp_path, Target(kind="score", names=("score",)), {"score": 2})


def test_costs_at_prediction_and_in_scores(opinion_run: Path, store: Path) -> None:
    text = "the food was great but the music was dull ."
    for name in ("good", "bad"):
        answer = Predictor(opinion_run, costs={name: 1e9})([text])[0]
        assert answer["label"] == name
        assert answer["probabilities"] == Predictor(opinion_run)([text])[0]["probabilities"]
        told = invoke("predict", opinion_run, text, "--cost", f"{name}=1e9", "--json")
        assert json.loads(told.stdout)[0]["label"] == name
    parts = evaluate(EvaluateSettings(run=opinion_run, store=store, cost=("good=1e9",)))["validation"]
    assert parts["by_label"]["good"]["recall"] == 1
    assert parts["by_label"]["good"]["precision"] == pytest.approx(parts["decided"]["accuracy"])
    assert parts["gold"] == evaluate(EvaluateSettings(run=opinion_run, store=store))["validation"]["gold"]
    both = invoke("predict", opinion_run, text, "--cost", "good=2", "--abstain")
    assert both.exit_code == 2
    assert "--abstain" in both.stderr


def test_a_pretrained_student_has_no_labels_that_cost(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--cost: "):
        evaluate_pretrained(EvaluateSettings.from_flags(run=tmp_path, cost=("fraud=2",)))
