import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.arrays import GOLDEN_GAMMA, hashed, uniform

PUBLISHED = {  # the first outputs of SplitMix64 for two seeds, as other libraries give them
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821],
}
parts = st.integers(-(2**63), 2**63 - 1)


def as_int64(number: int) -> int:
    """The signed number with the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("seed", PUBLISHED)
def test_one_part_gives_the_published_outputs_of_splitmix64(seed: int) -> None:
    # the generator adds gamma before each output: its n-th one is the first of a generator that starts n gammas later
    later = [as_int64(seed + n * int(GOLDEN_GAMMA)) for n in range(5)]
    assert hashed(later).tolist() == PUBLISHED[seed]


@given(parts, parts)
def test_a_second_part_is_absorbed_like_a_seed(first: int, second: int) -> None:
    assert hashed(first, second).tolist() == hashed(as_int64(int(hashed(first)[0]) + second)).tolist()


def test_parts_are_broadcast() -> None:
    rows, columns = np.arange(-3, 4), np.arange(5)
    table = hashed(9, rows[:, None], columns, 1)
    assert table.shape == (7, 5)
    assert table.tolist() == [[int(hashed(9, row, column, 1)[0]) for column in columns] for row in rows]
    assert hashed(9, np.zeros(0, dtype=np.int64)).shape == (0,)


def test_keys_differ_by_value_order_and_number_of_parts() -> None:
    grid = np.arange(300)
    hashes = np.concatenate([hashed(grid), hashed(grid[:, None], grid).ravel(), hashed(grid[:, None], 0, grid).ravel()])
    assert len(np.unique(hashes)) == len(hashes)


def test_uniform_is_the_hash_over_two_to_the_64th() -> None:
    hashes = np.array([2**61, 2**63, 3 * 2**62], dtype=np.uint64)
    np.testing.assert_allclose(uniform(hashes), [1 / 8, 1 / 2, 3 / 4], rtol=0, atol=2.0**-50)


@given(st.integers(0, 2**64 - 1))
@example(0)
@example(2**64 - 1)
def test_uniform_excludes_0_and_1(number: int) -> None:
    (value,) = uniform(np.array([number], dtype=np.uint64))
    assert 0 < value < 1


def test_numbers_of_consecutive_keys_are_uniform_and_independent() -> None:
    values = uniform(hashed(42, 7, np.arange(100_000)))
    counts, _ = np.histogram(values, bins=100, range=(0, 1))
    assert 40 < np.sum((counts - 1000) ** 2 / 1000) < 170  # chi-square with 99 degrees of freedom: 99 ± 5 · 14
    next_to_each_other = np.histogram2d(values[:-1], values[1:], bins=10, range=((0, 1), (0, 1)))[0]
    assert 40 < np.sum((next_to_each_other - 999.99) ** 2 / 999.99) < 170
