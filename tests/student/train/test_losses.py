import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL
from student.data import balanced_weights, load_chosen, load_examples
from student.losses.logit_losses import distillation_loss, labels_loss, logit_error, score_loss, soft_divergence
from student.settings import SoftLoss, TrainSettings
from student.train import train
from tests.helpers.students import tiny_config, weights

LN3, LN43 = math.log(3), math.log(4 / 3)
# Student [1/4, 3/4], gold class 1: CE = ln 4/3. Teacher [1/2, 1/2]: KL = 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3.
KINDS: tuple[SoftLoss, ...] = ("kl", "mse")
STUDENT, TEACHER, GOLD = torch.tensor([[0.0, LN3]]), torch.tensor([[5.0, 5.0]]), torch.tensor([1])


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, LN43), (0.0, LN43 / 2), (0.5, 0.75 * LN43)])
def test_alpha_weighs_gold_against_teacher(alpha: float, expected: float) -> None:
    assert distillation_loss(STUDENT, TEACHER, GOLD, alpha, 1.0).item() == pytest.approx(expected)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 4 * LN43 / 2), (1.0, math.log(10 / 9))])
def test_temperature_softens_the_teachers_term_alone(alpha: float, expected: float) -> None:
    twice = torch.tensor([[0.0, 2 * LN3]])  # softened by T = 2: [1/4, 3/4]; as it is: [1/10, 9/10]
    assert distillation_loss(twice, TEACHER, GOLD, alpha, 2.0).item() == pytest.approx(expected)


def test_the_teacher_is_softened_too() -> None:
    student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * LN3]])  # softened by T = 2: [1/4, 3/4]
    kl = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert distillation_loss(student, teacher, GOLD, 0.0, 2.0).item() == pytest.approx(4 * kl)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_row_without_gold_takes_the_teachers_term_alone(alpha: float) -> None:
    no_gold = torch.tensor([NO_LABEL])
    assert distillation_loss(STUDENT, TEACHER, no_gold, alpha, 1.0).item() == pytest.approx(LN43 / 2)
    both = [torch.cat(pair) for pair in ((STUDENT, STUDENT), (TEACHER, TEACHER), (GOLD, no_gold))]
    mean = ((alpha + (1 - alpha) / 2) * LN43 + LN43 / 2) / 2
    assert distillation_loss(both[0], both[1], both[2], alpha, 1.0).item() == pytest.approx(mean)


def test_kl_is_summed_over_classes_and_averaged_over_rows() -> None:
    student = torch.zeros(2, 4)
    teacher = torch.tensor([[60.0, 0, 0, 0], [0.0, 0, 0, 0]])  # certain: KL = ln 4; uniform: KL = 0
    loss = distillation_loss(student, teacher, torch.tensor([0, 0]), 0.0, 1.0)
    assert loss.item() == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_gradient_is_that_of_soft_cross_entropy(temperature: float) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 3).double()
    soft = functional.softmax(teacher / temperature, dim=1)
    ours = distillation_loss(student, teacher, torch.full((5,), NO_LABEL), 0.5, temperature)
    known = functional.cross_entropy(student / temperature, soft) * temperature**2
    gradients = [torch.autograd.grad(loss, student)[0] for loss in (ours, known)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0.01


def test_extreme_logits_give_finite_losses_and_gradients() -> None:
    student = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = distillation_loss(student, -student.detach(), GOLD, 0.5, 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx(2e4)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, 9.0), (0.0, 1.0), (0.25, 3.0)])
def test_scores_are_squared_errors(alpha: float, expected: float) -> None:
    loss = score_loss(torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([5.0]), alpha)
    assert loss.item() == pytest.approx(expected)


def test_scores_without_gold_take_the_teachers_term_alone() -> None:
    student = torch.tensor([[2.0], [2.0]], requires_grad=True)
    loss = score_loss(student, torch.tensor([[3.0], [3.0]]), torch.tensor([float("nan"), 5.0]), 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx((1 + 9) / 2)
    assert gradient.tolist() == [[-1.0], [-3.0]]


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, LN43), (0.0, 8.0), (0.25, 0.25 * LN43 + 0.75 * 8)])
def test_squared_error_of_the_logits_by_hand(alpha: float, expected: float) -> None:
    teacher = STUDENT + torch.tensor([[4.0, 0.0]])  # (16 + 0) / 2 classes
    assert distillation_loss(STUDENT, teacher, GOLD, alpha, soft_loss="mse").item() == pytest.approx(expected)


def test_squared_error_is_averaged_over_classes_and_rows() -> None:
    student, teacher = torch.zeros(2, 3), torch.tensor([[1.0, -2.0, 2.0], [0.0, 0.0, 3.0]])
    torch.testing.assert_close(logit_error(student, teacher), torch.tensor([3.0, 3.0]))
    teacher[1] = 0
    assert distillation_loss(student, teacher, torch.tensor([0, 0]), 0.0, soft_loss="mse").item() == pytest.approx(1.5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_row_without_gold_takes_the_squared_error_alone(alpha: float) -> None:
    student, teacher = STUDENT.repeat(2, 1), STUDENT + torch.tensor([[2.0, 0.0], [0.0, 4.0]])  # errors 2 and 8
    loss = distillation_loss(student, teacher, torch.tensor([1, NO_LABEL]), alpha, soft_loss="mse")
    assert loss.item() == pytest.approx((alpha * LN43 + (1 - alpha) * 2 + 8) / 2)


def test_mse_sees_the_level_of_logits_and_kl_does_not() -> None:
    shifted = TEACHER + 3
    kl, mse = ([distillation_loss(STUDENT, t, GOLD, 0.0, 1.0, k).item() for t in (TEACHER, shifted)] for k in KINDS)
    assert kl[0] == pytest.approx(kl[1])
    assert mse[1] > mse[0] + 1


LOGITS = st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8), st.floats(-8, 8)), min_size=2, max_size=6)


@settings(deadline=None)
@given(rows=LOGITS, temperature=st.floats(0.5, 20))
def test_kl_gradient_is_that_of_soft_cross_entropy(rows: list[tuple[float, float, float]], temperature: float) -> None:
    student = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(rows[::-1], dtype=torch.float64)
    soft = functional.softmax(teacher / temperature, dim=1)
    cross_entropy_B = -(soft * functional.log_softmax(student / temperature, dim=1)).sum(dim=1)
    ours, known = (
        torch.autograd.grad(loss_B.sum(), student)[0]
        for loss_B in (soft_divergence(student, teacher, temperature), temperature**2 * cross_entropy_B)
    )
    torch.testing.assert_close(ours, known, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(rows=LOGITS, temperature=st.floats(0.5, 20))
def test_kl_is_never_negative_and_zero_from_itself(rows: list[tuple[float, float, float]], temperature: float) -> None:
    student, teacher = torch.tensor(rows, dtype=torch.float64), torch.tensor(rows[::-1], dtype=torch.float64)
    assert soft_divergence(student, teacher, temperature).min() >= -1e-9
    assert soft_divergence(student, student, temperature).abs().max() < 1e-9


def test_kl_at_high_temperature_is_mse_of_centred_logits() -> None:
    # Hinton et al. 2015: T² KL -> sum (s - t)² / (2 C) for logits with mean 0; without T² it would vanish.
    student, teacher = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([[-2.0, 2.0]]).double()
    assert soft_divergence(student, teacher, 1000.0).item() == pytest.approx((9 + 9) / 4, rel=1e-4)
    assert logit_error(student, teacher).item() == pytest.approx(9)


# Student [1/4, 3/4] each by itself, gold [0, 1]: BCE = ln 4/3 both. Teacher [1/2, 1/2]: KL = 1/2 ln 4/3 both.
APART = torch.tensor([[-LN3, LN3]])


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, LN43), (0.0, LN43 / 2), (0.5, 0.75 * LN43)])
def test_labels_apart_weigh_gold_against_teacher(alpha: float, expected: float) -> None:
    teacher, gold = torch.zeros(1, 2), torch.tensor([[0, 1]])
    assert labels_loss(APART, teacher, gold, alpha).item() == pytest.approx(expected)
    no_gold = torch.full((1, 2), NO_LABEL)
    assert labels_loss(APART, teacher, no_gold, alpha).item() == pytest.approx(LN43 / 2)
    both = labels_loss(APART.repeat(2, 1), teacher.repeat(2, 1), torch.cat([gold, no_gold]), alpha)
    assert both.item() == pytest.approx((expected + LN43 / 2) / 2)


def test_labels_apart_are_softened_on_both_sides() -> None:
    student, teacher, no_gold = 2 * APART, torch.zeros(1, 2), torch.full((1, 2), NO_LABEL)
    assert labels_loss(student, teacher, no_gold, 0.0, 2.0).item() == pytest.approx(4 * LN43 / 2)
    same = labels_loss(student, student, no_gold, 0.0, 2.0)
    assert same.item() == pytest.approx(0, abs=1e-6)
    assert labels_loss(student, teacher, no_gold, 0.0, soft_loss="mse").item() == pytest.approx((2 * LN3) ** 2)


def test_gradient_of_labels_apart_is_that_of_bce_with_the_teacher() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 3).double()
    weight = torch.tensor([0.0, 1, 2, 1, 1]).double()
    ours = labels_loss(student, teacher, torch.full((5, 3), NO_LABEL), 0.5, weight_B=weight)
    rows = functional.binary_cross_entropy_with_logits(student, teacher.sigmoid(), reduction="none").mean(dim=1)
    gradients = [torch.autograd.grad(loss, student)[0] for loss in (ours, (rows * weight).mean())]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", [distillation_loss, labels_loss])
def test_an_unknown_loss_is_refused(loss: Any) -> None:
    gold = torch.zeros(2, dtype=torch.int64) if loss is distillation_loss else torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(KeyError, match="huber"):
        loss(torch.zeros(2, 3), torch.zeros(2, 3), gold, 0.5, 1.0, "huber")


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


TWICE = torch.tensor([0, 0, 1, 2])  # the first row twice
WEIGHT_B = torch.tensor([2.0, 1.0, 1.0]) * 3 / 4  # the same, with the mean 1
ALL = "select source_row, variant, {} as weight from opinion"


@pytest.mark.parametrize("soft_loss", ["kl", "mse"])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_weight_two_is_the_row_twice(soft_loss: SoftLoss, alpha: float) -> None:
    student = torch.tensor([[1.0, 0.0, -2.0], [0.5, 0.2, 0.1], [0.0, 3.0, 1.0]], requires_grad=True)
    teacher, gold = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0]]), torch.tensor([2, NO_LABEL, 0])
    weighted = distillation_loss(student, teacher, gold, alpha, 2.0, soft_loss, WEIGHT_B)
    twice = distillation_loss(student[TWICE], teacher[TWICE], gold[TWICE], alpha, 2.0, soft_loss)
    torch.testing.assert_close(weighted, twice)
    gradients = [torch.autograd.grad(loss, student)[0] for loss in (weighted, twice)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0.01


def test_weight_two_of_a_score_is_the_row_twice() -> None:
    student, teacher = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[2.0], [2.0], [1.0]])
    gold = torch.tensor([4.0, float("nan"), 3.0])
    # 0.5 * 9 + 0.5 * 1 = 5 twice; 0; 0.5 * 4 = 2
    assert score_loss(student, teacher, gold, 0.5, WEIGHT_B).item() == pytest.approx((5 + 5 + 0 + 2) / 4)
    assert score_loss(student[TWICE], teacher[TWICE], gold[TWICE], 0.5).item() == pytest.approx(12 / 4)


def test_weights_are_scaled_to_the_mean_one(opinion_set: ExampleSet) -> None:
    examples = load_chosen(opinion_set, ALL.format("source_row") + " where source_row in (1, 2, 3)")
    assert examples.weight_N.tolist() == pytest.approx([0.5, 1.0, 1.5])
    huge = load_chosen(opinion_set, ALL.format("case when source_row = 0 then 0 else 1e308 end"))
    assert huge.weight_N.tolist() == pytest.approx([0.0, *[96 / 95] * 95])
    assert set(load_examples(opinion_set, "train").weight_N) == {1.0}


def test_a_weight_follows_its_row_into_the_batches(opinion_set: ExampleSet, tmp_path: Path) -> None:
    # Of a zero learning rate the loss is that of the initial student: in the mean over rows, weighted.
    def loss(name: str, query: str) -> float:
        changes = {"query": query, "num_train_epochs": 1, "learning_rate": 1e-30, "hidden_dropout": 0.0}
        changes |= {"alpha": 0.0, "soft_loss": "mse", "per_device_train_batch_size": 7}
        history = train(tiny_config(opinion_set.root, tmp_path / name, **changes), "")["result"]["history"]
        return float(history[0]["loss"])

    # The teacher's logits are 100 for one row and 0 for the others; students begin near 0.
    row = "select source_row, variant, case when source_row = 40 then [100, -100] else [0, 0] end as logits"
    plain, heavy = (
        loss("plain", f"{row} from opinion"),
        loss("heavy", f"{row}, case when source_row = 40 then 3 else 1 end as weight from opinion"),
    )
    assert plain == pytest.approx(1e4 / 96, rel=0.05)
    assert heavy == pytest.approx(3 * 1e4 / 98, rel=0.05)


def test_equal_weights_are_none(opinion_set: ExampleSet, opinion_run: Path, tmp_path: Path) -> None:
    train(tiny_config(opinion_set.root, tmp_path / "equal", query=ALL.format(7)), "")
    train(tiny_config(opinion_set.root, tmp_path / "other", query=ALL.format("1 + label")), "")
    equal, other, plain = weights(tmp_path / "equal"), weights(tmp_path / "other"), weights(opinion_run)
    assert all(torch.equal(equal[name], plain[name]) for name in plain)
    assert not all(torch.equal(other[name], plain[name]) for name in plain)


def test_weight_zero_is_a_row_less(opinion_set: ExampleSet, tmp_path: Path) -> None:
    # One batch of everything: the mean over 48 rows, twice their weight over 96.
    changes = {"per_device_train_batch_size": 96, "num_train_epochs": 3, "hidden_dropout": 0.0}
    queries = {"zero": ALL.format("(source_row < 48)::int"), "less": ALL.format(1) + " where source_row < 48"}
    losses = {}
    for name, query in queries.items():
        record = train(tiny_config(opinion_set.root, tmp_path / name, query=query, **changes), "")
        losses[name] = [entry["loss"] for entry in record["result"]["history"]]
    assert losses["zero"] == pytest.approx(losses["less"], rel=1e-4)
    zero, less = weights(tmp_path / "zero"), weights(tmp_path / "less")
    assert all(np.allclose(zero[name], less[name], atol=1e-3) for name in zero)
