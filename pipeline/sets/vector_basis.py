"""A basis of principal components, once per set or layer, which the codec ``pca`` writes vectors in.

Components come in order of variance, so that the first of a vector's numbers are a smaller codec by themselves.

Shapes: N vectors, H their width, K components.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pipeline.arrays import Floats
from pipeline.errors import IntegrityError

BASIS_FILE = "basis.safetensors"
DEVIATIONS = 5  # what int8 reaches to; farther numbers are cut off
INT8_MAX = 127
ROUNDING = 1e-8  # share of squares that may be but the rounding of a teacher in float32
TOKENS_PER_NUMBER = 20  # of a state, that a basis is fitted to


@dataclass(frozen=True)
class Basis:
    """A vector is ``mean_H + (scale_K * numbers_K) @ components_KH``, all float32.

    Attributes:
        variance_H: of what it was fitted to, along each component there is, those that are left out included; None if
            that was not kept.
    """

    mean_H: Floats
    components_KH: Floats
    scale_K: Floats
    variance_H: Floats | None = None

    def to_bytes(self) -> bytes:
        """The content of a ``basis.safetensors``."""
        return bases_to_bytes({"": self})

    def first(self, num_components: int) -> "Basis":
        """The basis of so many components, the largest."""
        return replace(self, components_KH=self.components_KH[:num_components], scale_K=self.scale_K[:num_components])

    @property
    def variance_lost(self) -> float | None:
        """The share of the variance that its components leave out, of what it was fitted to; 0 if there was none."""
        if self.variance_H is None:
            return None
        whole, squares = float(self.variance_H.sum()), float((self.mean_H**2).sum())
        return 0.0 if whole <= ROUNDING * squares else float(self.variance_H[len(self.scale_K) :].sum()) / whole

    @property
    def sha256(self) -> str:
        """Hash of that content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def bases_to_bytes(bases: Mapping[str, Basis]) -> bytes:
    """The content of a ``basis.safetensors`` of several bases, whose arrays have these prefixes."""
    tensors: dict[str, Floats] = {}
    for prefix, basis in bases.items():
        arrays = {"mean": basis.mean_H, "components": basis.components_KH, "scale": basis.scale_K}
        if basis.variance_H is not None:
            arrays["variance"] = basis.variance_H
        tensors |= {prefix + name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return bytes(save(tensors))


def fit_basis(vectors_NH: Floats, num_components: int) -> Basis:
    """The mean of vectors and the directions in which they vary most, the largest number of each positive."""
    sample_NH = vectors_NH.astype(np.float64)
    mean_H = sample_NH.mean(axis=0)
    centred_NH = sample_NH - mean_H
    variance_H, directions_HH = np.linalg.eigh(centred_NH.T @ centred_NH / len(sample_NH))
    components_KH = directions_HH[:, ::-1][:, :num_components].T
    largest_K = np.abs(components_KH).argmax(axis=1)
    components_KH = components_KH * np.sign(components_KH[np.arange(len(components_KH)), largest_K])[:, None]
    variance_H = variance_H[::-1].clip(min=0)
    deviation_K = np.sqrt(variance_H[:num_components])
    scale_K = np.where(deviation_K > 0, deviation_K, 1) * (DEVIATIONS / INT8_MAX)
    return Basis(*(array.astype(np.float32) for array in (mean_H, components_KH, scale_K, variance_H)))


def read_basis(path: Path, num_components: int, width: int, prefix: str = "") -> Basis:
    """Reads a ``basis.safetensors``, or of several bases in it the one whose arrays have a prefix.

    Raises:
        IntegrityError: if it is missing or damaged, or of another size.
    """
    try:
        tensors = load_file(path)
        mean_H, components_KH, scale_K = (tensors[prefix + name] for name in ("mean", "components", "scale"))
        basis = Basis(mean_H, components_KH, scale_K, tensors.get(f"{prefix}variance"))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: not a basis: {error}") from error
    variance_H = basis.mean_H if basis.variance_H is None else basis.variance_H
    arrays = (basis.mean_H, basis.components_KH, basis.scale_K, variance_H)
    shapes = tuple(array.shape for array in arrays)
    is_float = {array.dtype for array in arrays} == {np.dtype(np.float32)}
    if shapes != ((width,), (num_components, width), (num_components,), (width,)) or not is_float:
        raise IntegrityError(f"{path}: not a basis of {num_components} components for {width} numbers: {shapes}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise IntegrityError(f"{path}: a number of the basis is NaN or Inf")
    if basis.variance_H is not None and (basis.variance_H < 0).any():
        raise IntegrityError(f"{path}: a variance of the basis is below 0")
    return basis
