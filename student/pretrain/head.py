"""The prediction head's forward and backward pass at once, a chunk of positions at a time.

With the gradient worked out while a chunk's logits are at hand (as fused linear cross-entropy does it: Hsu et al. 2024,
Liger Kernel), all positions times the vocabulary never exist together, and no logits are computed twice.

Shapes: P positions, F features, V vocabulary, G the features, a 1 for the bias, and zeros up to a round number.
"""

from collections.abc import Callable

import torch
from torch import nn

from pipeline.sets.codecs import Distribution
from student.pretrain.loss import Weight, position_loss

CHUNK = 512  # positions whose logits are alive: 31 MB in bf16 for BERT's vocabulary
ROWS = 16  # of them at once, whose logits in float32 stay in a core's cache
WORDS = 2048  # whose gradients are added up at once
STEP = 64  # numbers of positions and features are rounded up to so many: what matrix units like, and few shapes

TeacherOf = Callable[[slice], Distribution]


class HeadPass:
    """A head's loss and gradients; keeps its memory from step to step, as fresh memory is dear.

    Args:
        head: a linear layer from F features to V words, float32.
        dtype: of the matrix products. Softmax, losses and sums over chunks are float32.
    """

    def __init__(self, head: nn.Linear, dtype: torch.dtype) -> None:
        self._head = head
        num_words, num_features = head.weight.shape
        width = -(-(num_features + 1) // 32) * 32
        new = head.weight.detach().new_zeros
        self._weight_VG = new(num_words, width, dtype=dtype)
        self._features_PG = new(CHUNK, width, dtype=dtype)
        self._logits_PV = new(CHUNK, num_words, dtype=dtype)
        self._turned_VP = new(WORDS, CHUNK, dtype=dtype)
        self._d_block_VG = new(WORDS, width, dtype=dtype)
        self._d_weight_VF, self._d_bias_V = new(num_words, num_features), new(num_words)

    def backward(
        self,
        features_PF: torch.Tensor,
        target_P: torch.Tensor,
        teacher_of: TeacherOf,
        alpha: float,
        temperature: float,
        scale: Weight = 1.0,
    ) -> torch.Tensor:
        """Puts the gradients of the loss where ``loss.backward()`` would, the head's in place of older ones.

        Args:
            features_PF: float32, the head's input; at least one position.
            target_P: int64, what stood at the position.
            teacher_of: the teacher's distributions at the positions of a slice.
            alpha: weight of the gold.
            temperature: T.
            scale: by which the loss is multiplied.

        Returns:
            The sum of the positions' losses (`position_loss`) times the scale; a scalar, float32.
        """
        d_features_PF = torch.empty_like(features_PF)
        total = features_PF.new_zeros(())
        with torch.no_grad():
            num_features = features_PF.shape[1]
            self._weight_VG[:, :num_features] = self._head.weight
            self._weight_VG[:, num_features] = self._head.bias
            self._features_PG[:, num_features] = 1
            for start in range(0, len(features_PF), CHUNK):
                part = slice(start, min(start + CHUNK, len(features_PF)))
                d_logits_PV = self._logits(features_PF[part])
                teacher = teacher_of(part).to(features_PF.device)
                total += _to_gradient(
                    d_logits_PV[: part.stop - start], target_P[part], teacher, alpha, temperature, scale
                )
                d_logits_PV[part.stop - start :] = 0
                d_features_PF[part] = (d_logits_PV @ self._weight_VG)[: part.stop - start, :num_features]
                self._add_up(d_logits_PV, first=start == 0)
        self._head.weight.grad, self._head.bias.grad = self._d_weight_VF, self._d_bias_V
        features_PF.backward(d_features_PF)  # type: ignore[no-untyped-call]
        return total

    def _logits(self, features_PF: torch.Tensor) -> torch.Tensor:
        """The logits of a chunk, and of nothing up to a round number of positions."""
        num_positions, num_features = features_PF.shape
        self._features_PG[:num_positions, :num_features] = features_PF
        rounded = _rounded(num_positions)
        return torch.mm(self._features_PG[:rounded], self._weight_VG.T, out=self._logits_PV[:rounded])

    def _add_up(self, d_logits_PV: torch.Tensor, first: bool) -> None:
        """Adds a chunk's part to the gradients of weight and bias, some words at a time."""
        features_PG = self._features_PG[: len(d_logits_PV)]
        num_features = self._d_weight_VF.shape[1]
        for start in range(0, len(self._d_bias_V), WORDS):
            d_part_PV = d_logits_PV[:, start : start + WORDS]
            turned_VP = self._turned_VP[: d_part_PV.shape[1], : len(d_part_PV)].copy_(d_part_PV.T)
            d_block_VG = torch.mm(turned_VP, features_PG, out=self._d_block_VG[: len(turned_VP)])
            for sums, block in (
                (self._d_weight_VF, d_block_VG[:, :num_features]),
                (self._d_bias_V, d_block_VG[:, num_features]),
            ):
                words = sums[start : start + WORDS]
                words.copy_(block) if first else words.add_(block)


def _to_gradient(
    logits_PV: torch.Tensor,
    target_P: torch.Tensor,
    teacher: Distribution,
    alpha: float,
    temperature: float,
    scale: Weight,
) -> torch.Tensor:
    """Turns logits into the gradient with respect to them, where they are; returns the sum of the losses."""
    total = logits_PV.new_zeros((), dtype=torch.float32)
    rows = ROWS if logits_PV.device.type == "cpu" else CHUNK
    for start in range(0, len(logits_PV), rows):
        part_PV = logits_PV[start : start + rows]
        part = teacher.part(start, start + len(part_PV))
        loss_P, d_part_PV = position_loss(
            part_PV.float(), target_P[start : start + rows], part, alpha, temperature, scale
        )
        part_PV.copy_(d_part_PV)
        total += loss_P.sum()
    return total


def _rounded(number: int) -> int:
    return -(-number // STEP) * STEP
