import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pipeline.errors import TeacherError
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import Tokenized
from teacher.models.batches import FULL_BATCH, collate, naming_rows, token_budget_batches
from teacher.models.classifier import Teacher, teacher_logits
from teacher.models.loaded import LoadedTokenizer

PAD = 99


class Ramp(torch.nn.Module):
    """Logits of a row: the sum of its ids, their number, and its last id; memory for ``most_rows`` rows."""

    def __init__(self, most_rows: int | None = None, not_finite: float | None = None) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.most_rows, self.not_finite, self.batch_sizes = most_rows, not_finite, list[int]()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        if self.most_rows is not None and len(input_ids) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        assert (input_ids[attention_mask == 0] == PAD).all()
        self.batch_sizes.append(len(input_ids))
        length = attention_mask.sum(1)
        last = input_ids.gather(1, length[:, None] - 1)[:, 0]
        logits = torch.stack([(input_ids * attention_mask).sum(1), length, last], dim=1).float()
        if self.not_finite is not None:
            logits[last == 7, 1] = self.not_finite
        return SimpleNamespace(logits=logits)


def ramp_teacher(model: Ramp, order: tuple[int, ...] = (0, 1, 2)) -> Teacher:
    target = Target(kind="classes", names=("a", "b", "c"))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    loaded = LoadedTokenizer(tokenizer, PAD, None, False, (), ([], []))
    return Teacher("ramp", None, model, loaded, target, target.names, order)


def tokens(*rows: list[int]) -> list[Tokenized]:
    return [Tokenized(ids, [0] * len(ids), ids, []) for ids in rows]


def by_hand(rows: list[list[int]]) -> np.ndarray:
    return np.array([[sum(ids), len(ids), ids[-1]] for ids in rows], dtype=np.float32).reshape(-1, 3)


ids_lists = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=12), max_size=30)


@given(rows=ids_lists, max_tokens=st.integers(1, 200))
def test_rows_are_in_input_order_in_any_batches(rows: list[list[int]], max_tokens: int) -> None:
    logits_NC = teacher_logits(ramp_teacher(Ramp()), tokens(*rows), max_tokens)
    assert logits_NC.dtype == np.float32
    np.testing.assert_array_equal(logits_NC, by_hand(rows))


@given(rows=ids_lists, order=st.permutations(range(3)))
def test_columns_in_the_tasks_order(rows: list[list[int]], order: list[int]) -> None:
    logits_NC = teacher_logits(ramp_teacher(Ramp(), tuple(order)), tokens(*rows), 40)
    np.testing.assert_array_equal(logits_NC, by_hand(rows)[:, order])


@given(rows=ids_lists.filter(bool), most_rows=st.integers(1, 5))
def test_a_batch_too_large_for_the_memory_is_split(rows: list[list[int]], most_rows: int) -> None:
    model, advanced = Ramp(most_rows), list[int]()
    logits_NC = teacher_logits(ramp_teacher(model), tokens(*rows), 10_000, advanced.append)
    np.testing.assert_array_equal(logits_NC, by_hand(rows))
    assert max(model.batch_sizes) <= most_rows
    assert sum(advanced) == len(rows)


def test_a_row_too_large_for_the_memory_is_an_error() -> None:
    with pytest.raises(TeacherError, match="3 tokens"):
        teacher_logits(ramp_teacher(Ramp(most_rows=0)), tokens([1], [1, 2, 3]), 100)


def test_other_errors_are_not_taken_for_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        teacher_logits(ramp_teacher(Ramp()), tokens([], [1]), 100)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_logit_that_is_not_finite_is_refused_with_its_row(value: float) -> None:
    inputs = tokens([1, 2, 3], [4], [2, 7], [7])
    columns = {"source_row": [10, 11, 17, 20], "sentence1": list("abcd"), "sentence2": [None, None, "e f", None]}
    message = r"^train, row 17, 'c' / 'e f': .*\[9\.0, -?(nan|inf), 7\.0\].*--precision"
    with pytest.raises(TeacherError, match=message), naming_rows(inputs, pa.table(columns), "train"):
        teacher_logits(ramp_teacher(Ramp(not_finite=value)), inputs, 4)


def test_no_rows_give_no_logits() -> None:
    assert teacher_logits(ramp_teacher(Ramp()), [], 100).shape == (0, 3)


def test_padding_fills_the_end() -> None:
    batch = collate(ramp_teacher(Ramp()), tokens([5, 6], [7]))
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[5, 6], [7, PAD]],
        "attention_mask": [[1, 1], [1, 0]],
    }


@given(lengths=st.lists(st.integers(1, 60), max_size=200), budget=st.integers(1, 300))
def test_every_row_once_and_within_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


@given(lengths=st.lists(st.integers(0, 9), max_size=50), budget=st.integers(1, 40))
def test_longest_first_and_rows_of_a_length_in_order(lengths: list[int], budget: int) -> None:
    flat = [row for batch in token_budget_batches(lengths, budget) for row in batch]
    assert flat == sorted(flat, key=lambda row: (-lengths[row], row))


def cost(batches: list[list[int]], lengths: list[int], budget: int) -> int:
    return sum(FULL_BATCH * len(batch) * max(lengths[row] for row in batch) + budget for batch in batches)


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=9), budget=st.integers(1, 150))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths: list[int], budget: int) -> None:
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    least = min(
        cost(cut, lengths, budget)
        for places in itertools.product([False, True], repeat=len(order) - 1)
        for cut in [[order[a:b] for a, b in itertools.pairwise([0, *_true(places), len(order)])]]
        if all(len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget for batch in cut)
    )
    assert cost(token_budget_batches(lengths, budget), lengths, budget) == least


def _true(places: tuple[bool, ...]) -> list[int]:
    return [number for number, cut in enumerate(places, start=1) if cut]


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ([3, 5, 4], 10, [[1], [2], [0]]),  # 12 + 3 * 10 / 16 is less than 13 + 2 * 10 / 16
        ([7], 2, [[0]]),
        ([2, 2, 2], 4, [[0], [1, 2]]),
        ([], 8, []),
        ([9, 1, 1, 1], 36, [[0], [1, 2, 3]]),  # 12 + 2 * 36 / 16 is less than 36 + 36 / 16
        ([9, 8, 9, 9], 36, [[0, 2, 3, 1]]),  # 1 token of padding is less than 36 / 16
    ],
)
def test_known_answers(lengths: list[int], budget: int, expected: list[list[int]]) -> None:
    assert token_budget_batches(lengths, budget) == expected
