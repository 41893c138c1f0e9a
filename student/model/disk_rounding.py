"""Weights rounded for the disk, to about 3 to 7 bits per number. In memory all of them are float32.

A row of a matrix is stored as its deviation from a neutral row (zero, or the identity), in whole steps. Rows that are
neutral are not stored. The steps are powers of two, small against the row's typical deviation, and Huffman's code gives
frequent numbers few bits. Rounding a second time changes no weight, so a student that is loaded and saved again stays
the same.

Shapes: V rows of a matrix, R rows that are stored, F numbers of a row.
"""

import zlib
from collections.abc import Iterable, Mapping
from math import isqrt

import numpy as np
import torch
from torch import Tensor

# Steps in typical deviations of a row. A text reads few rows of a table and all rows of a head, and docs/students.md
# lists what such steps cost: vectors need finer ones than matrices.
HEAD_STEP, VECTOR_STEP, MATRIX_STEP = 1 / 16, 1 / 8, 1.0
# -128 is not used, so that the range is symmetric.
LARGEST = 127
# Names of a matrix's parts: numbers, a step per row, which rows they are, and how many rows and columns there are.
NUMBERS, STEPS, ROWS, SHAPE = ".numbers", ".steps", ".rows", ".shape"
PARTS = (NUMBERS, STEPS, ROWS, SHAPE)
VECTORS, MATRICES = ("table.weight", "vectors.trained.weight"), "matrices.table.weight"
# Largest accepted ratio of bytes in memory to bytes on disk. Most rows of a large vocabulary can be neutral.
MOST_WIDENED = 1000


def rounded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with each float32 matrix replaced by its parts. Other tensors do not change."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        is_matrix = tensor.ndim == 2 and tensor.dtype == torch.float32
        found |= _parts(name, tensor) if is_matrix else {name: tensor}
    return found


def widened(tensors: Mapping[str, Tensor], most_numbers: int) -> dict[str, Tensor]:
    """Returns the tensors with each matrix restored from its parts, float32.

    Args:
        tensors: the result of `rounded`, or tensors without parts.
        most_numbers: the limit for all matrices together. A file of a few bytes can describe any number of neutral
            rows.

    Raises:
        ValueError: if parts do not fit together, or describe more numbers.
    """
    names = [name.removesuffix(SHAPE) for name in tensors if name.endswith(SHAPE)]
    found = {name: tensor for name, tensor in tensors.items() if not _is_part(name, names)}
    for name in names:
        numbers, step_R, rows_R, shape = (tensors[name + part] for part in PARTS)
        num_rows, num_columns = shape.tolist()
        most_numbers -= num_rows * num_columns
        if min(num_rows, num_columns) < 1 or most_numbers < 0:
            raise ValueError(
                f"{name} has {num_rows:,} x {num_columns:,} numbers, which is too many for the size of its file"
            )
        if len(rows_R) and not (rows_R[0] >= 0 and rows_R[-1] < num_rows and bool((rows_R.diff() > 0).all())):
            raise ValueError(f"{name} has rows that do not ascend within 0 to {num_rows:,}")
        if len(step_R) != len(rows_R):
            raise ValueError(f"{name} has {len(rows_R):,} rows and {len(step_R):,} steps")
        numbers_RF = _unpacked(name, numbers, len(rows_R), num_columns)
        neutral_F = _neutral(name, num_columns)
        weight_VF = neutral_F.repeat(num_rows, 1)
        weight_VF[rows_R.long()] = numbers_RF.float().mul_(step_R.float().unsqueeze(1)).add_(neutral_F)
        found[name] = weight_VF
    return found


def _is_part(name: str, names: Iterable[str]) -> bool:
    return any(name == of + part for of in names for part in PARTS)


def _neutral(name: str, num_columns: int) -> Tensor:
    return torch.eye(isqrt(num_columns)).flatten() if name.endswith(MATRICES) else torch.zeros(num_columns)


def _parts(name: str, weight_VF: Tensor) -> dict[str, Tensor]:
    deviation_VF = weight_VF - _neutral(name, weight_VF.shape[1])
    # Not `> 0`: a row that is not a number has to stay one that is seen.
    rows_R = (deviation_VF.abs().amax(dim=1) != 0).nonzero().flatten()
    deviation_RF = deviation_VF[rows_R]
    step_R = _steps(name, deviation_RF)
    numbers_RF = (deviation_RF / step_R.unsqueeze(1)).round_().nan_to_num_(0.0, 0.0, 0.0).clamp_(-LARGEST, LARGEST)
    numbers_RF, step_R = _coarsest(numbers_RF.to(torch.int16), step_R)
    return {
        name + NUMBERS: _packed(numbers_RF.to(torch.int8)),
        name + STEPS: step_R.bfloat16(),  # because float64 represents every such power of two
        name + ROWS: rows_R.int(),
        name + SHAPE: torch.tensor(weight_VF.shape, dtype=torch.int32),
    }


def _steps(name: str, deviation_RF: Tensor) -> Tensor:
    """Returns the step of each row, a power of two [R]. It is NaN for a row with a number that is not finite."""
    fineness = MATRIX_STEP if name.endswith(MATRICES) else VECTOR_STEP if name.endswith(VECTORS) else HEAD_STEP
    largest_R = deviation_RF.abs().amax(dim=1) if len(deviation_RF) else deviation_RF.new_zeros(0)
    # Divided by the largest number first, because squares of tiny or huge numbers are beyond float32.
    typical_R = (deviation_RF / largest_R.unsqueeze(1)).square_().mean(dim=1).sqrt_() * largest_R
    exponent_R = torch.maximum((fineness * typical_R).log2().floor(), (largest_R / LARGEST).log2().ceil())
    step_R = torch.exp2(exponent_R.clamp(min=-120))
    # Rounding makes a row's typical deviation a little larger. Where that doubles the step, the row is on the grid of
    # the half already and keeps it, if its numbers still fit.
    half_RF = deviation_RF / (step_R / 2).unsqueeze(1)
    is_on_grid_R = (half_RF == half_RF.round()).all(dim=1) & (half_RF.abs() <= LARGEST).all(dim=1)
    return torch.where(is_on_grid_R, step_R / 2, step_R).where(largest_R.isfinite(), torch.nan)


def _coarsest(numbers_RF: Tensor, step_R: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the same rows as multiples of the largest possible steps, so that equal weights have one form on disk."""
    # The lowest bit of a number is the largest power of two that divides it.
    lowest_RF = (numbers_RF & -numbers_RF).where(numbers_RF != 0, LARGEST + 1)
    divisor_R = lowest_RF.amin(dim=1) if len(numbers_RF) else step_R.to(numbers_RF.dtype)
    return numbers_RF // divisor_R.unsqueeze(1), step_R * divisor_R


def _packed(numbers_RF: Tensor) -> Tensor:
    """Returns the bytes of numbers in Huffman's code.

    Longer repetitions, for which deflate also searches, do not occur.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    packed = packer.compress(numbers_RF.numpy().tobytes()) + packer.flush()
    return torch.from_numpy(np.frombuffer(packed, np.uint8).copy())


def _unpacked(name: str, packed: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Returns unpacked numbers, int8 [R, F]."""
    size = num_rows * num_columns
    try:
        # One byte more than there should be shows that there is more, without unpacking all of it.
        unpacked = zlib.decompressobj().decompress(packed.numpy().tobytes(), size + 1)
    except zlib.error as error:
        raise ValueError(f"the numbers of {name} are damaged: {error}") from error
    if len(unpacked) != size:
        raise ValueError(f"{name} does not have the {size:,} numbers of its {num_rows:,} rows")
    return torch.from_numpy(np.frombuffer(unpacked, np.int8).copy()).view(num_rows, num_columns)
