"""A basis of principal components, once per set or layer, which the codec ``pca`` writes vectors in.

Components come in order of variance, so that the first of a vector's numbers are a smaller codec by themselves.

Shapes: N vectors, H their width, K components.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pipeline.arrays import Floats
from pipeline.errors import IntegrityError

BASIS_FILE = "basis.safetensors"
DEVIATIONS = 5  # what int8 reaches to; farther numbers are cut off
INT8_MAX = 127


@dataclass(frozen=True)
class Basis:
    """A vector is ``mean_H + (scale_K * numbers_K) @ components_KH``, all float32."""

    mean_H: Floats
    components_KH: Floats
    scale_K: Floats

    def to_bytes(self) -> bytes:
        """The content of a ``basis.safetensors``."""
        return bases_to_bytes({"": self})

    def first(self, num_components: int) -> "Basis":
        """The basis of so many components, the largest."""
        return Basis(self.mean_H, self.components_KH[:num_components], self.scale_K[:num_components])

    @property
    def sha256(self) -> str:
        """Hash of that content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def bases_to_bytes(bases: Mapping[str, Basis]) -> bytes:
    """The content of a ``basis.safetensors`` of several bases, whose arrays have these prefixes."""
    tensors: dict[str, Floats] = {}
    for prefix, basis in bases.items():
        arrays = {"mean": basis.mean_H, "components": basis.components_KH, "scale": basis.scale_K}
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
    deviation_K = np.sqrt(variance_H[::-1][:num_components].clip(min=0))
    scale_K = np.where(deviation_K > 0, deviation_K, 1) * (DEVIATIONS / INT8_MAX)
    return Basis(*(array.astype(np.float32) for array in (mean_H, components_KH, scale_K)))


def read_basis(path: Path, num_components: int, width: int, prefix: str = "") -> Basis:
    """Reads a ``basis.safetensors``, or of several bases in it the one whose arrays have a prefix.

    Raises:
        IntegrityError: if it is missing or damaged, or of another size.
    """
    try:
        tensors = load_file(path)
        basis = Basis(*(tensors[prefix + name] for name in ("mean", "components", "scale")))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: not a basis: {error}") from error
    arrays = (basis.mean_H, basis.components_KH, basis.scale_K)
    shapes = tuple(array.shape for array in arrays)
    if shapes != ((width,), (num_components, width), (num_components,)) or {a.dtype for a in arrays} != {
        np.dtype(np.float32)
    }:
        raise IntegrityError(f"{path}: not a basis of {num_components} components for {width} numbers: {shapes}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise IntegrityError(f"{path}: a number of the basis is NaN or Inf")
    return basis
