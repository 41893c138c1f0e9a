from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL
from student.data import load_chosen, load_examples
from student.losses.logit_losses import distillation_loss, score_loss
from student.settings import SoftLoss
from student.train import train
from tests.helpers.students import tiny_config, weights

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
