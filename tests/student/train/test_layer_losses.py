import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL, Target
from student.data import load_examples
from student.losses.layers import (
    NEGATIVES,
    TEMPERATURE,
    contrast_error,
    direction_error,
    kinds,
    negatives,
    relations,
    score_error,
    share_divergence,
    state_error,
)
from student.losses.ted_filters import train_filters
from student.pretrain_settings import FiltersSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config


def test_error_of_states_is_a_mean_over_the_tokens_of_each_sequence() -> None:
    student_TH, teacher_TH = torch.zeros(3, 2), torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 4.0]])
    assert state_error(student_TH, teacher_TH, torch.tensor([0, 1, 3])).tolist() == [5, (2 + 8) / 2]


def test_error_of_directions_does_not_know_lengths() -> None:
    student_TH, teacher_TH = torch.tensor([[2.0, 0.0], [3.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 7.0]])
    assert direction_error(student_TH, teacher_TH, torch.tensor([0, 1, 2])).tolist() == pytest.approx([0, 2])


def test_error_of_scores_by_hand() -> None:
    student, teacher = torch.zeros(1, 2, 2, 2), torch.tensor([[[[1.0, 0], [0, 0]], [[0, 2.0], [0, 0]]]])
    assert score_error(student, teacher, torch.tensor([[True, True]])).tolist() == [(1 + 4) / 8]


def test_divergence_of_shares_by_hand() -> None:
    teacher = torch.tensor([[[[math.log(3), 0.0], [0.0, 0.0]]]])
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    found = share_divergence(torch.zeros(1, 1, 2, 2), teacher, torch.tensor([[True, True]]))
    assert found.tolist() == pytest.approx([by_hand / 2])


def test_contrast_by_hand() -> None:
    likeness = torch.tensor([[0.0, TEMPERATURE * math.log(3), 0.0], [1.0, 0.0, 1.0]])
    found = contrast_error(likeness, torch.tensor([[1, 0, 0], [0, 2, 2]]))
    assert found.tolist() == pytest.approx([-math.log(3 / 5), -math.log(1 / 3)])


def test_relations_of_values_by_hand() -> None:
    values = torch.tensor([[[[1.0, 0, 0, 0], [2.0, 2, 0, 0]]]])
    assert relations(values).tolist() == [[[[0.5, 1], [1, 4]]]]


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**31))
def test_padding_changes_nothing(length: int, padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 1, 3, length + padding, length + padding, generator=generator) * 5
    student.requires_grad_()
    is_token = torch.arange(length + padding)[None] < length
    for loss in (score_error, share_divergence):
        padded = loss(student, teacher, is_token)
        bare = loss(student[..., :length, :length], teacher[..., :length, :length], is_token[:, :length])
        torch.testing.assert_close(padded, bare)
        (gradient,) = torch.autograd.grad(padded.sum(), student)
        assert gradient.isfinite().all()
        assert (gradient[..., length:] == 0).all()


def test_negatives_are_all_known_rows_of_other_kinds() -> None:
    torch.manual_seed(0)
    kind_N, is_known_N = np.array([0, 0, 1, 2, 1, 0]), np.array([True, True, True, True, False, True])
    drawn = negatives(kind_N, is_known_N, np.array([5, 2, 0]))
    assert drawn.shape == (3, NEGATIVES)
    assert [set(row) for row in drawn.tolist()] == [{2, 3}, {0, 1, 3, 5}, {2, 3}]
    torch.manual_seed(0)
    assert np.array_equal(negatives(kind_N, is_known_N, np.array([5, 2, 0])), drawn)
    assert not np.array_equal(negatives(kind_N, is_known_N, np.array([5, 2, 0])), drawn)


def test_rows_of_a_kind_have_the_same_labels(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "train")
    teacher_NC = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0]], dtype=np.float32)
    classes = Target(kind="classes", names=("a", "b"))
    one = replace(examples, label_N=np.array([0, NO_LABEL, NO_LABEL]), teacher_NC=teacher_NC)
    assert kinds(classes, one).tolist() == [0, 0, 1]
    labels = Target(kind="labels", names=("a", "b"))
    both = np.array([[1, 1], [NO_LABEL, NO_LABEL], [0, 1]])
    first, second, third = kinds(labels, replace(examples, label_N=both, teacher_NC=teacher_NC)).tolist()
    assert first == second != third


def test_filters_need_a_set_with_states(store: Path, tmp_path: Path) -> None:
    flags = FiltersSettings.from_flags(set=str(store / "opinion"), output_dir=tmp_path / "filters")
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "--keep cls", "--manifest opinion.yaml")):
        train_filters(flags, "distill filters")


def test_several_tasks_do_not_write_over_a_run_of_one(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "opinion"), "")
    before = read_record(tmp_path / "opinion" / "run.json")
    tasks = f"{store / 'opinion'},{store / 'roles'}"
    config = tiny_config(store / "opinion", tmp_path, set=(), tasks=tasks)
    with pytest.raises(FingerprintMismatchError, match=naming("tasks: ", "opinion, roles", "--output-dir")):
        train(config, "")
    assert read_record(tmp_path / "opinion" / "run.json") == before


@pytest.mark.parametrize("pairing", ["joint", None])
def test_sentences_and_pairs_share_an_encoder(pairing: str | None, store: Path, tmp_path: Path) -> None:
    bert = {"embedding": "bert", "init": "noise", "matrix_size": None, "vector_size": 24, "hidden_size": None}
    flags = {"pairing": "joint"} if pairing else bert | {"num_attention_heads": 2, "num_hidden_layers": 1}
    tasks = f"{store / 'opinion'},{store / 'roles'}"
    config = tiny_config(store / "opinion", tmp_path, set=(), tasks=tasks, num_train_epochs=1, **flags)
    train(config, "")
    assert read_record(tmp_path / "roles" / "run.json")["state"] == "finished"


def test_a_folder_without_filters_says_so(store: Path, tmp_path: Path) -> None:
    config = tiny_config(store / "opinion", tmp_path / "run", layer_loss="hid-seq", filters=tmp_path / "none")
    with pytest.raises((ConfigError, IntegrityError), match=r"none: .*filters\.json"):
        train(config, "")


def test_a_score_has_no_rows_of_other_labels(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--layer-loss hid-cls-contrast: "):
        train(tiny_config(ratings["score"].root, tmp_path / "run", layer_loss="hid-cls-contrast"), "")
