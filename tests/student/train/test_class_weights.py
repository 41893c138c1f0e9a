from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL
from student.data import balanced_weights, load_examples
from student.settings import TrainSettings
from student.train import train
from tests.helpers.students import tiny_config


def test_every_class_counts_the_same(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    num_rows = len(examples)
    teacher_NC = np.tile(np.array([1, 0], np.float32), (num_rows, 1))
    label_N = np.ones(num_rows, dtype=np.int64)
    label_N[:3], label_N[3:5] = 0, NO_LABEL  # of class 0, three by gold and two by the teacher's prediction
    weight_N = balanced_weights(replace(examples, label_N=label_N, teacher_NC=teacher_NC))
    assert weight_N.dtype == np.float32
    assert weight_N[:5] == pytest.approx(num_rows / 2 / 5)
    assert weight_N[:5].sum() == pytest.approx(weight_N[5:].sum())
    assert weight_N.mean() == pytest.approx(1)
    own_N = np.linspace(0.1, 1, num_rows, dtype=np.float32)
    both_N = own_N * balanced_weights(
        replace(examples, label_N=label_N, teacher_NC=teacher_NC, weight_N=own_N)
    )  # also of rows that count differently
    assert both_N[:5].sum() == pytest.approx(both_N[5:].sum())
    assert both_N.sum() == pytest.approx(own_N.sum())
    alone = balanced_weights(replace(examples, label_N=np.zeros(num_rows, dtype=np.int64)))
    assert alone.tolist() == [1] * num_rows


def test_balanced_classes_and_another_metric_make_another_student(opinion_set: ExampleSet, tmp_path: Path) -> None:
    flags = {"class_weights": "balanced", "metric_for_best_model": "macro_f1"}
    record = train(tiny_config(opinion_set.root, tmp_path / "balanced", num_train_epochs=1, **flags), "train")
    alike = train(tiny_config(opinion_set.root, tmp_path / "alike", num_train_epochs=1), "train")
    losses = [run["result"]["history"][0]["loss"] for run in (record, alike)]
    assert losses[0] != losses[1]
    assert [*record["result"]["best"]["metrics"]["validation"]] == ["macro_f1", "accuracy"]
    assert [*record["result"]["evaluation"]["validation"]["interval"]] == ["macro_f1", "accuracy"]
    assert [*alike["result"]["best"]["metrics"]["validation"]] == ["accuracy"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"metric_for_best_model": "macro_f1"}, "--metric-for-best-model macro_f1: "),
        ({"class_weights": "balanced"}, "--class-weights: "),
    ],
)
def test_flags_that_do_not_fit_a_score(
    ratings: dict[str, ExampleSet], tmp_path: Path, flags: dict[str, str], reason: str
) -> None:
    config: TrainSettings = tiny_config(ratings["score"].root, tmp_path, **flags)
    with pytest.raises(ConfigError) as error:
        train(config, "")
    assert reason in str(error.value)
