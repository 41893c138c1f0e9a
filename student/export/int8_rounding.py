"""How numbers become int8 in the engine's file: each row is divided by a scale of its own, and rounded.

Weights that were rounded for the disk (`student.model.disk_rounding`) are such numbers already, and do not change.

Shapes: R rows, F numbers of a row, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.arrays import Ints

Tensors = dict[str, Tensor]
INT8_MAX = 127
# A symmetric range keeps zero exact, and 15 values compress to four bits or less.
COARSE_MAX = 7
# docs/students.md lists what these steps cost in accuracy, in standard deviations of a table. Vectors need finer steps
# than matrices.
VECTOR_STEP, MATRIX_STEP, LAYER_STEP = 1.75, 3.25, 1.0
# The step grows with 1 / count to this power, so the rounding is finest where most texts are affected.
RARENESS = 0.25


class Rounding:
    """Eight bits: exact where a row has few different numbers, otherwise its largest number becomes 127."""

    def kept(self, token_R: Tensor, pad_id: int) -> Tensor:
        """Returns the tokens whose rows are stored. The others share the padding's."""
        return token_R

    def rows(self, value_RF: Tensor, token_R: Tensor | None = None, is_matrix: bool = False) -> Tensor:
        """Returns the scales of a table's rows.

        Args:
            value_RF: differences from the neutral row.
            token_R: the token of each row. None: rows are not of single tokens.
            is_matrix: whether rows are matrices of products, or vectors of sums.
        """
        return self.layer(value_RF)

    def layer(self, weight_RF: Tensor) -> Tensor:
        """Returns the scales of a layer's rows, one per output."""
        step_R, largest_R = exact_steps(weight_RF), weight_RF.abs().amax(dim=-1)
        scale_R = torch.where(largest_R <= INT8_MAX * step_R, step_R, largest_R / INT8_MAX)
        return torch.where(largest_R > 0, scale_R, 1.0)


def exact_steps(value_RF: Tensor) -> Tensor:
    """Returns the largest power of two of which all numbers of a row are multiples, float32 [R]; of zeros infinity."""
    fraction_RF, exponent_RF = torch.frexp(value_RF)
    # A float32 has 24 bits. The lowest bit of a whole number is the largest power of two that divides it.
    whole_RF = (fraction_RF * 2**24).int()
    lowest_RF = torch.ldexp((whole_RF & -whole_RF).float(), exponent_RF - 24)
    return lowest_RF.where(whole_RF != 0, torch.inf).amin(dim=-1)


def is_exact(value_RF: Tensor) -> bool:
    """Whether int8 with a scale for each row holds the same numbers."""
    return bool((value_RF.abs().amax(dim=-1) <= INT8_MAX * exact_steps(value_RF)).all())


@dataclass(frozen=True)
class CoarseRounding(Rounding):
    """Numbers from -7 to 7, which zlib compresses to a third, and rows of the training rows' tokens alone.

    Attributes:
        count_V: the number of occurrences of each token in the training rows. None: all used tokens count the same.
    """

    count_V: Ints | None

    def kept(self, token_R: Tensor, pad_id: int) -> Tensor:
        if self.count_V is None:
            return token_R
        is_kept_R = torch.from_numpy(self.count_V[token_R.numpy()] > 0) | (token_R == pad_id)
        return token_R[is_kept_R]

    def rows(self, value_RF: Tensor, token_R: Tensor | None = None, is_matrix: bool = False) -> Tensor:
        count_R = None if self.count_V is None or token_R is None else self.count_V[token_R.numpy()]
        return coarse_steps(value_RF, MATRIX_STEP if is_matrix else VECTOR_STEP, count_R)

    def layer(self, weight_RF: Tensor) -> Tensor:
        return coarse_steps(weight_RF, LAYER_STEP)


def coarse_steps(value_RF: Tensor, step: float, count_R: Ints | None = None) -> Tensor:
    """Returns the scale of each row, with which no number is rounded to more than 7.

    Args:
        value_RF: float32.
        step: the distance of two rounded numbers, in units of the root mean square of all numbers.
        count_R: the frequency of each row. None: the same for all.
    """
    typical = float(value_RF.double().square().mean().sqrt()) or 1.0
    fineness_R = np.ones(len(value_RF)) if count_R is None else np.maximum(count_R, 1).astype(np.float64) ** RARENESS
    # Dividing by the geometric mean keeps the average step, and with it the file's size, independent of the counts.
    usual_R = torch.from_numpy(step * typical * np.exp(np.log(fineness_R).mean()) / fineness_R)
    # A row with a large number gets a wider step, because clipping would distort a product more than rounding.
    widest_R = torch.maximum(usual_R, value_RF.double().abs().amax(dim=1) / COARSE_MAX)
    # A smaller step would round to 0 in float32, and then be a divisor.
    return widest_R.clamp(min=torch.finfo(torch.float32).tiny).float()
