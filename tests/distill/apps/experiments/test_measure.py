from pathlib import Path

import numpy as np
import pytest

from distill.apps.experiments.measure import scores
from distill.apps.systems import Rows, divided_rows, read_rows, read_trained_rows
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Bins
from student.data import hold_out, load_examples, with_groups
from student.train import train
from tests.helpers.students import tiny_config

LABELS = Target(kind="classes", names=("a", "b"))
SCORE = Target(kind="score", names=("score",))
BINS = Target(kind="bins", names=("0", "1", "2"), bins=Bins(low=0, high=2, width=1))


def test_labels_are_scored_against_gold_and_teacher() -> None:
    said_NC = np.eye(2, dtype=np.float32)[[0, 1, 1, 0]]
    teacher_NC = np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]
    rows = Rows(list("wxyz"), None, np.array([0, 1, 1, 1]), np.full(4, np.nan, np.float32), teacher_NC)
    told = scores(("accuracy",), LABELS, said_NC, LABELS, rows)
    assert told["scores"] == {"accuracy": 0.75}
    assert told["fidelity"] == 0.5
    low, high = told["intervals"]["accuracy"]
    assert low < 0.75 < high


def test_a_score_is_compared_with_a_teacher_of_bins() -> None:
    gold_N = np.array([0, 1, 2], np.float32)
    teacher_NC = 50 * np.eye(3, dtype=np.float32)[[2, 1, 0]]  # the opposite of gold
    rows = Rows(list("xyz"), None, np.full(3, NO_LABEL), gold_N, teacher_NC)
    told = scores(("pearson",), SCORE, gold_N[:, None], BINS, rows)
    assert told["scores"]["pearson"] == pytest.approx(1)
    assert told["fidelity"] == pytest.approx(-1)


@pytest.mark.parametrize("where", [None, "variant = 0", "source_row % 3 > 0"])
def test_rows_are_divided_as_the_run_did(augmented_set: ExampleSet, tmp_path: Path, where: str | None) -> None:
    config = tiny_config(augmented_set.root, tmp_path, where=where, held_out=0.2, num_train_epochs=1)
    train(config, "")
    rows = with_groups(augmented_set, load_examples(augmented_set, "train", where), None)
    trained, held_out = hold_out(rows, augmented_set.record.target, 0.2)
    key_N2, source_N = divided_rows(tmp_path, augmented_set)
    assert key_N2.tolist() == trained.key_N2.tolist()
    assert source_N.tolist() == held_out.key_N2[:, 0].tolist()
    told = read_trained_rows(augmented_set, key_N2)
    assert (told.teacher_NC == trained.teacher_NC).all()
    assert (read_rows(augmented_set, "train", source_N).teacher_NC == held_out.teacher_NC).all()


def test_rows_are_those_of_the_set_without_variants(augmented_set: ExampleSet) -> None:
    rows = read_rows(augmented_set, "train")
    assert len(rows) == augmented_set.record.splits["train"].rows == 96
    assert rows.texts2 is None
    assert (rows.teacher_NC == augmented_set.gold("train")[0]).all()
