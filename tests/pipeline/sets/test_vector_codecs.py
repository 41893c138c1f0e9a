"""Codecs of vectors: what comes back, and how far it may be from what went in."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, IntegrityError
from pipeline.sets.codecs.vectors import (
    BASIS_FILE,
    DEVIATIONS,
    INT8_MAX,
    Basis,
    Float16Codec,
    Int8Codec,
    PcaCodec,
    VectorCodec,
    fit_basis,
    read_basis,
    vector_codec,
)
from tests.helpers.messages import naming

WIDTH = 6
VECTORS = arrays(np.float32, (5, WIDTH), elements=st.floats(-1000, 1000, width=32))


def there_and_back(codec: VectorCodec, vectors_NH: Floats, basis: Basis | None = None) -> Floats:
    table = pa.table(codec.encode(vectors_NH, basis), schema=pa.schema(codec.columns()))
    assert codec.problem(table) is None
    back_NH = codec.decode(table, basis)
    assert back_NH.dtype == np.dtype(np.float32)
    assert back_NH.shape == vectors_NH.shape
    return back_NH


def correlated(num_rows: int, seed: int = 0) -> Floats:
    """Vectors that vary in every direction, in some much more than in others."""
    random = np.random.default_rng(seed)
    spread_HH = random.normal(size=(WIDTH, WIDTH)) * 2.0 ** -np.arange(WIDTH)
    return (random.normal(size=(num_rows, WIDTH)) @ spread_HH.T + 3).astype(np.float32)


@given(vectors_NH=VECTORS)
def test_float16_rounds_to_eleven_bits(vectors_NH: Floats) -> None:
    back_NH = there_and_back(Float16Codec(width=WIDTH), vectors_NH)
    assert (np.abs(back_NH - vectors_NH) <= np.maximum(np.abs(vectors_NH) * 2.0**-11, 2.0**-25)).all()


@given(vectors_NH=VECTORS)
def test_int8_is_off_by_half_a_step_of_its_vector(vectors_NH: Floats) -> None:
    back_NH = there_and_back(Int8Codec(width=WIDTH), vectors_NH)
    step_N = np.abs(vectors_NH).max(axis=1) / INT8_MAX
    assert (np.abs(back_NH - vectors_NH) <= 0.5001 * step_N[:, None] + 1e-30).all()


def test_int8_by_hand() -> None:
    stored = Int8Codec(width=3).encode(np.array([[0.0, -2.54, 1.0], [0, 0, 0]], dtype=np.float32))
    assert stored["vector"].to_pylist() == [[0, -127, 50], [0, 0, 0]]
    assert stored["scale"].to_pylist() == [pytest.approx(0.02), 0]


def test_all_components_lose_rounding_alone() -> None:
    vectors_NH = correlated(400)
    basis = fit_basis(vectors_NH, WIDTH)
    back_NH = there_and_back(PcaCodec(width=WIDTH, dims=WIDTH), vectors_NH, basis)
    np.testing.assert_allclose(basis.components_KH @ basis.components_KH.T, np.eye(WIDTH), atol=1e-5)
    bound = 0.5001 * np.linalg.norm(basis.scale_K)  # half a step along each component
    assert np.linalg.norm(back_NH - vectors_NH, axis=1).max() <= bound


@pytest.mark.parametrize("dims", range(1, WIDTH))
def test_fewer_components_lose_the_variance_of_the_rest(dims: int) -> None:
    vectors_NH = correlated(2000)
    basis = fit_basis(vectors_NH, dims)
    back_NH = there_and_back(PcaCodec(width=WIDTH, dims=dims), vectors_NH, basis)
    variance_H = np.linalg.eigvalsh(np.cov(vectors_NH.T.astype(np.float64), bias=True))
    lost = float(((back_NH - vectors_NH).astype(np.float64) ** 2).sum(axis=1).mean())
    rounding = float((basis.scale_K.astype(np.float64) ** 2).sum() / 12)
    assert lost == pytest.approx(variance_H[: WIDTH - dims].sum() + rounding, rel=0.1)


def test_a_prefix_of_a_basis_is_a_smaller_one() -> None:
    vectors_NH = correlated(400)
    large, small = fit_basis(vectors_NH, 5), fit_basis(vectors_NH, 2)
    np.testing.assert_allclose(large.components_KH[:2], small.components_KH, atol=1e-6)
    of_large = PcaCodec(width=WIDTH, dims=5).encode(vectors_NH, large)["vector"].to_pylist()
    of_small = PcaCodec(width=WIDTH, dims=2).encode(vectors_NH, small)["vector"].to_pylist()
    assert [row[:2] for row in of_large] == of_small


def test_what_is_far_out_is_cut_off_at_five_deviations() -> None:
    vectors_NH = correlated(400)
    basis = fit_basis(vectors_NH, 1)
    far_NH = (basis.mean_H + 50 * basis.scale_K[0] * INT8_MAX * basis.components_KH)[None, 0]
    assert PcaCodec(width=WIDTH, dims=1).encode(far_NH, basis)["vector"].to_pylist() == [[INT8_MAX]]
    deviation = np.std((vectors_NH - basis.mean_H) @ basis.components_KH[0])
    assert basis.scale_K[0] * INT8_MAX == pytest.approx(DEVIATIONS * deviation, rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_what_float16_cannot_hold_is_found(value: float) -> None:
    codec = Float16Codec(width=2)
    table = pa.table(codec.encode(np.array([[0, value]], dtype=np.float32)))
    assert "NaN" in (codec.problem(table) or "")


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, None])
def test_a_scale_that_cannot_be_is_found(scale: float | None) -> None:
    codec = Int8Codec(width=2)
    stored = codec.encode(np.ones((1, 2), dtype=np.float32))
    table = pa.table(stored | {"scale": pa.array([scale], pa.float32())})
    assert "scale" in (codec.problem(table) or "")


def test_a_basis_tells_what_it_leaves_out(tmp_path: Path) -> None:
    # the variances along the axes are 9, 4 and 1
    axes = np.diag([3.0, 2.0, 1.0]).astype(np.float32) * np.sqrt(3, dtype=np.float32)
    vectors_NH = 5 + np.concatenate([axes, -axes])
    path, basis = tmp_path / BASIS_FILE, fit_basis(vectors_NH, 2)
    path.write_bytes(basis.to_bytes())
    assert read_basis(path, 2, 3).variance_lost == pytest.approx(1 / 14)
    assert basis.first(1).variance_lost == pytest.approx(5 / 14)
    assert fit_basis(np.full((9, 3), 7.1, dtype=np.float32), 1).variance_lost == 0
    for wrong in (np.ones(2, dtype=np.float32), -np.ones(3, dtype=np.float32)):
        path.write_bytes(replace(basis, variance_H=wrong).to_bytes())
        with pytest.raises(IntegrityError, match=BASIS_FILE):
            read_basis(path, 2, 3)


def test_a_damaged_basis_is_refused(tmp_path: Path) -> None:
    path, basis = tmp_path / BASIS_FILE, fit_basis(correlated(50), 3)
    path.write_bytes(basis.to_bytes())
    np.testing.assert_array_equal(read_basis(path, 3, WIDTH).components_KH, basis.components_KH)
    with pytest.raises(IntegrityError, match=naming(BASIS_FILE, 4, 6)):
        read_basis(path, 4, WIDTH)
    path.write_bytes(replace(basis, mean_H=basis.mean_H * np.nan).to_bytes())
    with pytest.raises(IntegrityError, match=naming(BASIS_FILE, "NaN")):
        read_basis(path, 3, WIDTH)
    path.write_bytes(b"torn")
    with pytest.raises(IntegrityError, match=BASIS_FILE):
        read_basis(path, 3, WIDTH)


def test_more_components_than_numbers_are_refused() -> None:
    assert str(vector_codec("pca-6", 6)) == "pca-6"
    with pytest.raises(ConfigError, match=naming("codec pca-7", 6)):
        vector_codec("pca-7", 6)
