import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.training.batches import EpochBatches, MixedBatches, TaskBatch, held_out_rows, shuffled_batches
from pipeline.training.loop import seed_step
from pipeline.training.schedule import Schedule, linear_decay, scale_learning_rates
from tests.helpers.messages import naming


@given(
    lengths=st.lists(st.integers(0, 50), max_size=400),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 5),
)
def test_batches_hold_every_row_once(lengths: list[int], batch_size: int, seed: int, epoch: int) -> None:
    batches = shuffled_batches(lengths, batch_size, seed, epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    torch.manual_seed(epoch)
    np.random.default_rng().random()
    assert batches == shuffled_batches(lengths, batch_size, seed, epoch)


def test_batches_differ_by_seed_and_epoch_and_hold_like_lengths() -> None:
    lengths = [k % 50 + 1 for k in range(500)]
    first = shuffled_batches(lengths, 10, seed=1, epoch=0)
    assert first != shuffled_batches(lengths, 10, seed=1, epoch=1)
    assert first != shuffled_batches(lengths, 10, seed=2, epoch=0)
    # one window of 50 batches: sorted lengths 1 1 1 1 1 1 1 1 1 1, 2 2 …
    assert sorted({lengths[row] for row in batch}.pop() for batch in first) == list(range(1, 51))
    assert [lengths[batch[0]] for batch in first] != sorted(lengths[batch[0]] for batch in first)


def test_linear_decay() -> None:
    assert [linear_decay(step, 4) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
    assert [linear_decay(step, 6, warmup_steps=2) for step in range(7)] == [0, 0.5, 1, 0.75, 0.5, 0.25, 0]
    assert linear_decay(3, 3, warmup_steps=3) == 0
    assert linear_decay(0, 0) == 0
    steps, ratio = (Schedule(40, 40, "step", seed=0, warmup_steps=value) for value in (10, 0.25))
    assert [ratio.learning_rate(step) for step in range(40)] == [steps.learning_rate(step) for step in range(40)]


def test_seed_of_a_step() -> None:
    draws = []
    for seed, step, rank in ((1, 2, 0), (1, 2, 0), (1, 3, 0), (2, 2, 0), (1, 2, 1)):
        seed_step(seed, step, rank)
        draws.append(float(torch.rand(1)))
    assert draws[0] == draws[1]
    assert len(set(draws)) == 4


def test_every_group_keeps_its_part_of_the_learning_rate() -> None:
    first, *others = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": others, "lr": 2.0}])
    for factor in (0.5, 0.0, 0.25):
        scale_learning_rates(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [factor, 2 * factor]


@given(
    num_rows=st.integers(1, 60), batch_size=st.integers(1, 7), processes=st.integers(1, 4), first=st.integers(0, 100)
)
def test_an_epoch_has_every_row_whichever_step_is_asked_first(
    num_rows: int, batch_size: int, processes: int, first: int
) -> None:
    lengths = np.arange(num_rows) % 5
    of_process = [EpochBatches(lengths, batch_size, 3, processes, rank) for rank in range(processes)]
    steps = of_process[0].steps_per_epoch
    of_process[0].at(first)
    for epoch in (0, 2):
        batches = [part.at(epoch * steps + step) for step in range(steps) for part in of_process]
        whole = shuffled_batches(lengths, batch_size, 3, epoch)
        assert batches[: len(whole)] == whole
        assert batches[len(whole) :] == [whole[k % len(whole)] for k in range(len(batches) - len(whole))]
        assert len(batches) - len(whole) < processes


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), batch_size=st.integers(1, 7))
def test_mixed_batches_go_through_every_list_once_an_epoch(sizes: list[int], batch_size: int) -> None:
    batches = MixedBatches([EpochBatches([5] * size, batch_size, seed=1) for size in sizes], seed=1)
    steps = batches.steps_per_epoch
    assert steps == sum(-(-size // batch_size) for size in sizes)
    for epoch in range(2):
        rows: list[list[int]] = [[] for _ in sizes]
        for step in range(epoch * steps, (epoch + 1) * steps):
            batch = batches.at(step)
            rows[batch.task] += batch.rows
        assert [sorted(part) for part in rows] == [list(range(size)) for size in sizes]


def test_mixed_batches_are_shuffled_anew_and_resumed_anywhere() -> None:
    parts = [EpochBatches([5] * 40, 4, seed=1) for _ in range(2)]
    batches = MixedBatches(parts, seed=1)
    first, second = ([batches.at(epoch * 20 + step) for step in range(20)] for epoch in (0, 1))
    turns = [[batch.task for batch in epoch] for epoch in (first, second)]
    assert turns[0] != turns[1] != sorted(turns[1])
    assert MixedBatches(parts, seed=1).at(27) == second[7]
    alone = EpochBatches([5] * 40, 4, seed=1)
    assert [MixedBatches([alone], seed=1).at(step) for step in range(20)] == [
        TaskBatch(0, alone.at(step)) for step in range(20)
    ]


@given(num_rows=st.integers(2, 500), share=st.floats(0.01, 0.99))
def test_so_many_of_the_rows_are_held_out_each_once(num_rows: int, share: float) -> None:
    count = round(share * num_rows)
    if not 0 < count < num_rows:
        with pytest.raises(DataError, match=naming(f"{count} of {num_rows}")):
            held_out_rows(np.arange(num_rows), share)
        return
    rows = held_out_rows(np.arange(num_rows), share)
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < num_rows
    assert rows.tolist() == held_out_rows(np.arange(num_rows), share).tolist()


def test_they_come_from_everywhere() -> None:
    rows = held_out_rows(np.arange(10_000), 0.1)
    assert np.histogram(rows, 10, (0, 10_000))[0].min() > 70
    assert rows.tolist() != held_out_rows(np.arange(10_001), 0.1).tolist()
