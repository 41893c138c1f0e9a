"""Codecs for vectors of sentences and of tokens, and the basis of the codec ``pca``.

A basis of principal components is written once per set or layer. Its components are sorted by variance, so that the
first numbers of a vector are a smaller codec by themselves.

Shapes: N vectors, H their width, K numbers that are stored of each, which are components for ``pca``.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, IntegrityError
from pipeline.sets.codec_text import STATE_CODECS, StateCodecName, parse_codec
from pipeline.sets.record_parts import Part

BASIS_FILE = "basis.safetensors"
# Standard deviations that the range of int8 covers. Numbers beyond are clipped.
DEVIATIONS = 5
INT8_MAX = 127
# A smaller share of variance is only the rounding noise of a float32 teacher.
ROUNDING = 1e-8
TOKENS_PER_NUMBER = 20  # sample size for a basis: tokens per number of a hidden state
MAX_WIDTH = 2**16
Arrays = dict[str, pa.Array]  # a codec's columns


@dataclass(frozen=True)
class Basis:
    """A vector is ``mean_H + (scale_K * numbers_K) @ components_KH``, all float32.

    Attributes:
        variance_H: the variance of the fitted vectors along all components, including those that are left out.
    """

    mean_H: Floats
    components_KH: Floats
    scale_K: Floats
    variance_H: Floats

    def to_bytes(self) -> bytes:
        """The content of a ``basis.safetensors``."""
        return bases_to_bytes({"": self})

    def first(self, num_components: int) -> "Basis":
        """Returns the basis of only the largest components."""
        return replace(self, components_KH=self.components_KH[:num_components], scale_K=self.scale_K[:num_components])

    @property
    def variance_lost(self) -> float:
        """Returns the share of the fitted vectors' variance that its components leave out, or 0 without variance."""
        whole, squares = float(self.variance_H.sum()), float((self.mean_H**2).sum())
        return 0.0 if whole <= ROUNDING * squares else float(self.variance_H[len(self.scale_K) :].sum()) / whole

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()


def bases_to_bytes(bases: Mapping[str, Basis]) -> bytes:
    """The content of a ``basis.safetensors`` of several bases, whose arrays have these prefixes."""
    tensors: dict[str, Floats] = {}
    for prefix, basis in bases.items():
        arrays = {"mean": basis.mean_H, "components": basis.components_KH, "scale": basis.scale_K}
        arrays["variance"] = basis.variance_H
        tensors |= {prefix + name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(tensors))


def fit_basis(vectors_NH: Floats, num_components: int) -> Basis:
    """Returns the mean of vectors and their principal components. The largest number of each component is positive."""
    # In float32 the covariance of a large mean cancels most digits of the small variances.
    sample_NH = vectors_NH.astype(np.float64)
    mean_H = sample_NH.mean(axis=0)
    centred_NH = sample_NH - mean_H
    variance_H, directions_HH = np.linalg.eigh(centred_NH.T @ centred_NH / len(sample_NH))
    components_KH = directions_HH[:, ::-1][:, :num_components].T
    # An eigenvector's sign is arbitrary and depends on the LAPACK library. A fixed sign makes the basis reproducible.
    largest_K = np.abs(components_KH).argmax(axis=1)
    components_KH = components_KH * np.sign(components_KH[np.arange(len(components_KH)), largest_K])[:, None]
    # eigh sorts ascending, and rounding can make eigenvalues of a singular covariance slightly negative.
    variance_H = variance_H[::-1].clip(min=0)
    deviation_K = np.sqrt(variance_H[:num_components])
    # Each component has its own scale: the first ones vary so much more that a common one would round the others to 0.
    scale_K = np.where(deviation_K > 0, deviation_K, 1) * (DEVIATIONS / INT8_MAX)
    return Basis(*(array.astype(np.float32) for array in (mean_H, components_KH, scale_K, variance_H)))


def read_basis(path: Path, num_components: int, width: int, prefix: str = "") -> Basis:
    """Reads a ``basis.safetensors``. If it contains several bases, reads the one whose arrays have the prefix.

    Raises:
        IntegrityError: if it is missing or damaged, or of another size.
    """
    try:
        tensors = load_file(path)
        basis = Basis(*(tensors[prefix + name] for name in ("mean", "components", "scale", "variance")))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: not a basis: {error}") from error
    arrays = (basis.mean_H, basis.components_KH, basis.scale_K, basis.variance_H)
    shapes = tuple(array.shape for array in arrays)
    is_float = {array.dtype for array in arrays} == {np.dtype(np.float32)}
    if shapes != ((width,), (num_components, width), (num_components,), (width,)) or not is_float:
        raise IntegrityError(f"{path}: not a basis of {num_components} components for {width} numbers: {shapes}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise IntegrityError(f"{path}: a number of the basis is NaN or Inf")
    if (basis.variance_H < 0).any():
        raise IntegrityError(f"{path}: a variance of the basis is below 0")
    return basis


class VectorCodec(Part):
    """The codec of vectors with its settings, as in a set's record. Its column ``vector`` has K numbers per vector.

    Attributes:
        card_line: its columns, as rows of the card's table.
        dtype: the type of the stored numbers.
        bytes_per_number: their approximate size on disk.
        name: of the codec.
        width: H.
    """

    card_line: ClassVar[str]
    dtype: ClassVar[Any]
    bytes_per_number: ClassVar[float]

    name: StateCodecName
    width: int = Field(ge=1, le=MAX_WIDTH)

    def __str__(self) -> str:
        return self.name

    @property
    def num_stored(self) -> int:
        """K, numbers a vector."""
        return self.width

    @property
    def basis_bytes(self) -> int:
        """Returns the size of its basis, or 0 if it needs none."""
        return 0

    def columns(self) -> list[pa.Field]:
        """Returns the columns of a file, one entry per vector."""
        kind = pa.list_(pa.from_numpy_dtype(self.dtype), self.num_stored)
        return [pa.field("vector", kind, nullable=False)]

    @abstractmethod
    def encode(self, vectors_NH: Floats, basis: Basis | None = None) -> Arrays:
        """The columns of some vectors."""

    @abstractmethod
    def decode(self, rows: pa.Table, basis: Basis | None = None) -> Floats:
        """The vectors of some rows, [N, H] of float32."""

    def problem(self, rows: pa.Table) -> str | None:
        """Returns the problem of stored columns, or None."""
        column = rows.column("vector").combine_chunks()
        if column.null_count or column.flatten().null_count:
            return "a number of a vector is null"
        is_exact = self.dtype != np.int8  # rounded numbers are always finite
        return "a number of a vector is NaN or Inf" if is_exact and not np.isfinite(self.decode(rows)).all() else None

    def num_bytes(self) -> float:
        """Returns the approximate size of a vector on disk."""
        return self.bytes_per_number * self.num_stored

    def _stored(self, numbers_NK: npt.NDArray[Any]) -> Arrays:
        return {"vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers_NK.ravel()), self.num_stored)}

    def _numbers(self, rows: pa.Table) -> npt.NDArray[Any]:
        """Returns the stored numbers of some rows, [N, K]."""
        flat: npt.NDArray[Any] = rows.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.astype(self.dtype, copy=False).reshape(-1, self.num_stored)


class Float32Codec(VectorCodec):
    """float32, as the teacher outputs them."""

    card_line: ClassVar[str] = "| `vector` | {width} numbers |"
    dtype: ClassVar[Any] = np.float32
    bytes_per_number: ClassVar[float] = 3.6

    name: Literal["float32"] = "float32"

    def encode(self, vectors_NH: Floats, basis: Basis | None = None) -> Arrays:
        return self._stored(vectors_NH.astype(np.float32, copy=False))

    def decode(self, rows: pa.Table, basis: Basis | None = None) -> Floats:
        return self._numbers(rows)


class Float16Codec(VectorCodec):
    """Bits of float16. Numbers beyond float16 become Inf, which `problem` finds."""

    card_line: ClassVar[str] = "| `vector` | {width} numbers, bits of float16 |"
    dtype: ClassVar[Any] = np.uint16
    bytes_per_number: ClassVar[float] = 1.7

    name: Literal["float16"] = "float16"

    def encode(self, vectors_NH: Floats, basis: Basis | None = None) -> Arrays:
        with np.errstate(over="ignore"):
            return self._stored(vectors_NH.astype(np.float16).view(np.uint16))

    def decode(self, rows: pa.Table, basis: Basis | None = None) -> Floats:
        return self._numbers(rows).view(np.float16).astype(np.float32)


class Int8Codec(VectorCodec):
    """Integers, and their factor in the column ``scale``. The largest number of a vector becomes 127 or -127."""

    card_line: ClassVar[str] = "| `vector`, `scale` | {width} integers, to be multiplied by the scale |"
    dtype: ClassVar[Any] = np.int8
    bytes_per_number: ClassVar[float] = 0.95

    name: Literal["int8"] = "int8"

    def columns(self) -> list[pa.Field]:
        return [*super().columns(), pa.field("scale", pa.float32(), nullable=False)]

    def encode(self, vectors_NH: Floats, basis: Basis | None = None) -> Arrays:
        scale_N = (np.abs(vectors_NH).max(axis=1) / INT8_MAX).astype(np.float32)
        # A vector of zeros has the scale 0 and must not divide by it.
        numbers_NH = np.rint(vectors_NH / np.where(scale_N > 0, scale_N, 1)[:, None])
        return self._stored(numbers_NH.astype(np.int8)) | {"scale": pa.array(scale_N)}

    def decode(self, rows: pa.Table, basis: Basis | None = None) -> Floats:
        vectors_NH: Floats = self._numbers(rows).astype(np.float32) * rows.column("scale").to_numpy()[:, None]
        return vectors_NH

    def problem(self, rows: pa.Table) -> str | None:
        scale = rows.column("scale")
        if scale.null_count or not (np.isfinite(scale.to_numpy()) & (scale.to_numpy() >= 0)).all():
            return "the scale of a vector is null, not finite or below 0"
        return super().problem(rows)

    def num_bytes(self) -> float:
        return super().num_bytes() + 4


class PcaCodec(VectorCodec):
    """Integers along the first components of the set's basis.

    Attributes:
        dims: K.
    """

    card_line: ClassVar[str] = (
        "| `vector` | integers along the components of `basis.safetensors`, the largest first. Times `scale`, "
        "times `components`, plus `mean`, they give the vector of {width} numbers |"
    )
    dtype: ClassVar[Any] = np.int8
    bytes_per_number: ClassVar[float] = 0.9

    name: Literal["pca"] = "pca"
    dims: int = Field(ge=1, le=MAX_WIDTH)

    def __str__(self) -> str:
        return f"pca-{self.dims}"

    @property
    def num_stored(self) -> int:
        return self.dims

    @property
    def basis_bytes(self) -> int:
        return 4 * (2 * self.width + self.dims * self.width + self.dims)

    def encode(self, vectors_NH: Floats, basis: Basis | None = None) -> Arrays:
        assert basis is not None, "the set has its basis"
        # The components are orthonormal, so their transpose projects and their product restores.
        numbers_NK = (vectors_NH - basis.mean_H) @ basis.components_KH.T / basis.scale_K
        return self._stored(np.rint(numbers_NK).clip(-INT8_MAX, INT8_MAX).astype(np.int8))

    def decode(self, rows: pa.Table, basis: Basis | None = None) -> Floats:
        assert basis is not None, "the set has its basis"
        numbers_NK = self._numbers(rows).astype(np.float32) * basis.scale_K
        return (numbers_NK @ basis.components_KH + basis.mean_H).astype(np.float32, copy=False)


AnyVectorCodec = Annotated[Float16Codec | Int8Codec | PcaCodec, Field(discriminator="name")]
AnyStateCodec = Annotated[Float32Codec | Float16Codec | Int8Codec | PcaCodec, Field(discriminator="name")]


def vector_codec(text: str, width: int) -> Any:
    """Returns the codec of a text such as ``pca-64``, for vectors of so many numbers.

    Raises:
        ConfigError: if more components are requested than exist.
    """
    asked = parse_codec(text, STATE_CODECS)
    if asked.number is not None:
        if asked.number > width:
            raise ConfigError(f"codec {text}: the teacher's vectors have only {width} numbers")
        return PcaCodec(width=width, dims=asked.number)
    plain: dict[str, Any] = {"float32": Float32Codec, "float16": Float16Codec, "int8": Int8Codec}
    return plain[asked.name](width=width)
