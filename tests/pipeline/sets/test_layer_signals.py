"""How squares of attention and values are stored: exactly, or within half a step of their range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.arrays import Floats, Ints
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import changed
from pipeline.sets.record_parts import WindowsRecord
from pipeline.sets.signals import Attention, Blocks, Values
from tests.helpers.messages import naming

NUMBERS = st.floats(-50, 50, width=32)


def blocks_of(lengths: list[int], seed: int = 1) -> list[Floats]:
    """Symmetric squares, of two heads."""
    draw = np.random.default_rng(seed)
    squares = [draw.normal(size=(2, length, length)).astype(np.float32) * 5 for length in lengths]
    return [square + square.swapaxes(1, 2) for square in squares]


def lengths_of(blocks: list[Floats]) -> Ints:
    return np.array([block.shape[1] for block in blocks], dtype=np.int64)


@pytest.mark.parametrize("kind", [Attention, Values])
def test_float32_comes_back_as_it_was(kind: type[Blocks]) -> None:
    signal, blocks = kind(layers=(1,), heads=2, codec="float32"), blocks_of([4, 1, 7])
    stored = signal.encode(blocks)
    sizes = signal.sizes(lengths_of(blocks))
    assert {end: len(numbers) for end, numbers in stored.items()} == {end: size.sum() for end, size in sizes.items()}
    for back, block in zip(signal.decode(stored, lengths_of(blocks)), blocks, strict=True):
        np.testing.assert_array_equal(back, block)


def test_a_known_square() -> None:
    block = np.array([[[0, 255, 51], [2, 2, 2], [-1, 1, 4]]], dtype=np.float32)
    stored = Attention(layers=(1,), heads=1).encode([block])
    assert stored[""].tolist() == [0, 255, 51, 0, 0, 0, 0, 102, 255]
    assert stored["_low"].view(np.float16).tolist() == [0, 2, -1]
    assert stored["_high"].view(np.float16).tolist() == [255, 2, 4]
    symmetric = np.array([[[9, 1, 2], [1, 8, 3], [2, 3, 7]]], dtype=np.float32)
    half = Values(layers=(1,), heads=1)
    stored = half.encode([symmetric])
    assert stored[""].tolist() == [255, 0, 32, 255, 0, 0]  # 9 1 2 · 8 3 · 7
    assert half.decode(stored, np.array([3]))[0][0, 2].tolist() == pytest.approx([2, 3, 7], abs=0.02)


@pytest.mark.parametrize("kind", [Attention, Values])
@given(halves=arrays(np.float32, (2, 5, 5), elements=NUMBERS))
def test_bytes_are_within_half_a_step(kind: type[Blocks], halves: Floats) -> None:
    block = halves + halves.swapaxes(1, 2)
    signal = kind(layers=(1,), heads=2)
    stored = signal.encode([block, block])
    assert signal.numbers_problem(stored) is None
    low, high = (stored[end].view(np.float16).astype(np.float32)[:10].reshape(2, 5) for end in ("_low", "_high"))
    allowed = (high - low) / 255 / 2 + 2**-11 * np.abs(block).max(axis=2) + 1e-4
    back = signal.decode(stored, np.array([5, 5]))[1]
    upper = np.abs(back - block) <= allowed[..., None]
    assert upper[:, np.triu(np.ones((5, 5), dtype=bool))].all()
    if kind is Attention:
        assert upper.all()


def test_ranges_that_cannot_be_are_found() -> None:
    signal, stored = Attention(layers=(1,), heads=2), Attention(layers=(1,), heads=2).encode(blocks_of([3]))
    swapped = stored | {"_low": stored["_high"], "_high": stored["_low"]}
    infinite = stored | {"_high": np.full_like(stored["_high"], np.array(np.inf, np.float16).view(np.uint16))}
    for wrong in (swapped, infinite):
        assert "range" in str(signal.numbers_problem(wrong))


def test_rows_that_were_read_by_windows_have_none(opinion_set: ExampleSet) -> None:
    record = opinion_set.record
    shards = tuple(shard.in_folder("attention") for shard in record.shards)
    signals = record.signals.model_copy(update={"attention": Attention(layers=(1,), heads=1, shards=shards)})
    assert changed(record, signals=signals).signals.layer_signals
    with pytest.raises(ValueError, match=naming("signals", "windows")):
        changed(record, signals=signals, windows=WindowsRecord(size=32, stride=8))
