"""Which pairs of tokens a student learns, and what it learns by them."""

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError
from student import settings as config_module
from student.data import Examples
from student.encoders.encoder import without_padding
from student.encoders.matrices import matrix_encoder
from student.initial_weights.run import copy_embeddings
from student.model.student import Student
from student.row_adam import make_optimizer, rows_of_batch
from student.settings import Optimizer, TrainSettings, num_bigrams
from student.train import train
from student.vocabulary_pruning import frequent_pairs
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import padded, pair_student, student

CNN = {"head": "cnn", "matrix_size": 4, "vector_size": 16, "hidden_size": None}
texts = st.lists(st.lists(st.integers(0, 4), max_size=7), min_size=1, max_size=6)


def rows_of(one: list[list[int]], other: list[list[int]] | None = None, weights: list[float] | None = None) -> Examples:
    """Rows of sentences, or of pairs of them; nothing else of them counts."""
    count = len(one)
    second = None if other is None else Ragged.of(other)
    weight_N = np.array([1.0] * count if weights is None else weights, np.float32)
    label_N, score_N = np.zeros(count, np.int64), np.zeros(count, np.float32)
    logits_NC, key_N2 = np.zeros((count, 2), np.float32), np.zeros((count, 2), np.int64)
    return Examples(Ragged.of(one), second, label_N, score_N, logits_NC, weight_N, key_N2, "")


@given(texts, st.integers(1, 6))
def test_they_are_those_of_most_rows(rows: list[list[int]], most: int) -> None:
    second = rows[::-1]
    counts = Counter(pair for a, b in zip(rows, second, strict=True) for pair in {*pairwise(a), *pairwise(b)})
    several = {pair: count for pair, count in counts.items() if count > 1}
    found = [tuple(pair) for pair in frequent_pairs([rows_of(rows, second)], most).tolist()]
    assert found == sorted(set(found))
    assert len(found) == min(most, len(several))
    assert sorted(several[pair] for pair in found) == sorted(several.values())[len(several) - len(found) :]


def test_pairs_of_several_tasks_count_together() -> None:
    one, other = rows_of([[1, 2, 3]]), rows_of([[2, 3]], [[5, 6, 2, 3]])
    assert frequent_pairs([one, other], 9).tolist() == [[2, 3]]
    assert frequent_pairs([one, other], 0).shape == (0, 2)
    assert frequent_pairs([rows_of([[], [7]])], 9).shape == (0, 2)


def test_rows_of_weight_zero_do_not_count() -> None:
    rows = [[1, 2, 3], [1, 2], [2, 3]]
    assert frequent_pairs([rows_of(rows)], 9).tolist() == [[1, 2], [2, 3]]
    assert frequent_pairs([rows_of(rows, weights=[1, 2, 0])], 9).tolist() == [[1, 2]]


def test_a_run_learns_them(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path, num_bigrams=3), "")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["encoder"]["num_bigrams"] == 3
    kept = weights(tmp_path)
    assert kept["encoder.bigrams.pairs_K2"].shape == (3, 2)
    assert kept["encoder.bigrams.table.weight"].abs().amax(dim=1).min() > 1e-3
    assert Student.load(tmp_path).num_features == 2 * 5 + 2 * 9 + 32


def test_what_only_order_tells_is_learned_by_them() -> None:
    """Both classes have the same tokens, so sums alone cannot separate them."""
    rows, losses = torch.tensor([[1, 2, 3], [2, 1, 3]]), []
    for made in (pair_student(matrix_size=0), student(matrix_size=0)):
        optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
        for _ in range(60):
            loss = torch.nn.functional.cross_entropy(made(rows), torch.tensor([0, 1]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == [pytest.approx(0, abs=0.05), pytest.approx(math.log(2), abs=0.01)]


def test_a_run_starts_with_the_vectors_of_anothers_pairs(tmp_path: Path) -> None:
    source, started = pair_student(), pair_student()
    source.save(tmp_path)
    here = matrix_encoder(started.encoder).bigrams
    assert here is not None
    here.set_pairs(torch.tensor([(1, 1), (1, 2), (2, 6), (3, 3), (6, 3)]))
    torch.nn.init.zeros_(here.table.weight)
    copy_embeddings(tmp_path, started.encoder)
    theirs = matrix_encoder(source.encoder).bigrams
    assert theirs is not None
    assert torch.equal(here.vectors()[[1, 2, 4]], theirs.vectors()[[0, 3, 4]])
    assert not here.vectors()[[0, 3]].any()
    assert here.pairs_K2.tolist()[0] == [1, 1]
    for part, other in zip(started.encoder.tables(), source.encoder.tables(), strict=True):
        assert torch.equal(part.weight, other.weight)


def test_a_run_with_pairs_starts_from_one_without_and_the_other_way(
    opinion_run: Path, store: Path, tmp_path: Path
) -> None:
    train(tiny_config(store / "opinion", tmp_path / "with", init=opinion_run, num_bigrams=3, learning_rate=1e-30), "")
    train(tiny_config(store / "opinion", tmp_path / "without", init=tmp_path / "with", learning_rate=1e-30), "")
    name = "encoder.vectors.table.weight"
    for folder in ("with", "without"):
        torch.testing.assert_close(weights(tmp_path / folder)[name], weights(opinion_run)[name], rtol=0, atol=1e-20)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"embedding": "lstm", "matrix_size": None},
            "--embedding hybrid",
        ),
        ({"head": "bilstm"}, "--head bilstm"),
        (
            CNN,
            "--head cnn",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(store: Path, tmp_path: Path, changes: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        train(tiny_config(store / "opinion", tmp_path, num_bigrams=3, **changes), "")
    assert "--num-bigrams: " in str(raised.value)
    assert told in str(raised.value)


def test_gradients_by_rows_move_them_as_those_of_whole_tables_do() -> None:
    trained = []
    for by_rows in (True, False):
        made = pair_student()
        optimizer = make_optimizer(
            Optimizer(optimizer="adam", learning_rate=0.1, max_grad_norm=1.0), made.encoder, made.head
        )
        for sentences in ([[1, 2, 2, 6], [2, 1]], [[2, 6, 3, 1]], [[4], []], [[1, 2, 1, 2], [6, 3, 6, 3]]):
            ids_T, starts_S = without_padding(padded(sentences), 0)
            rows = rows_of_batch(optimizer, made.encoder, ids_T, starts_S) if by_rows else None
            optimizer.step(made.logits(ids_T, starts_S, rows).square().sum())
        optimizer.catch_up()
        trained.append(made.state_dict())
    start = pair_student().state_dict()["encoder.bigrams.table.weight"]
    for name, weight in trained[0].items():
        torch.testing.assert_close(weight, trained[1][name], rtol=0, atol=1e-3)  # of steps of 0.1
    assert (trained[0]["encoder.bigrams.table.weight"] - start).abs().min() > 0.001


@pytest.mark.parametrize(("rows", "is_default"), [(10_000, True), (10_001, False)])
def test_many_rows_need_them_by_a_flag_alone(rows: int, is_default: bool) -> None:
    assert num_bigrams(TrainSettings.from_flags().encoder, rows) == (None if is_default else 0)
    assert num_bigrams(TrainSettings.from_flags(num_bigrams=7).encoder, rows) == 7


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 70),
        ({"num_bigrams": 0}, 0),
        ({"head": "bilstm"}, 0),
        (CNN, 0),
    ],
)
def test_few_rows_have_them_by_default(store: Path, tmp_path: Path, changes: dict[str, object], count: int) -> None:
    train(tiny_config(store / "opinion", tmp_path, **changes), "")
    assert Student.load(tmp_path).config.encoder.model_dump()["num_bigrams"] == count


def test_more_rows_have_none_by_default(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "ROWS_OF_BIGRAMS", 3)
    train(tiny_config(store / "opinion", tmp_path), "")
    assert Student.load(tmp_path).config.encoder.model_dump()["num_bigrams"] == 0
