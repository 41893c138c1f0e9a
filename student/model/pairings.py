"""How two sentences are brought together. Shapes: F features, any axes before them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from student.config import PairingKind

Compare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Pairing:
    """What the rest of the student asks of a way to bring two sentences together.

    Attributes:
        words: its name in cards.
        compare: makes one representation [..., F * width] of the two sentences' [..., F]; None if the encoder reads
            both.
        width: of the result, as a multiple of one sentence's.
        is_one: whether both are read as one sequence, with the tokenizer's special tokens around them.
    """

    words: str
    compare: Compare | None = None
    width: int = 1
    is_one: bool = False


def diff_cat(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """DiffCat: [u ; w ; |u - w|], three times as wide (paper, section III-C)."""
    return torch.cat([u_BF, w_BF, (u_BF - w_BF).abs()], dim=-1)


def concatenate_compare(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """Concatenate-compare: [u ; w ; u * w ; |u - w|], four times as wide (Tang et al. 2019)."""
    return torch.cat([u_BF, w_BF, u_BF * w_BF, (u_BF - w_BF).abs()], dim=-1)


PAIRINGS: dict[PairingKind, Pairing] = {
    "diffcat": Pairing("DiffCat, [u; w; |u-w|]", diff_cat, 3),
    "joint": Pairing("both sentences as one sequence", is_one=True),
    "compare": Pairing("concatenate-compare, [u; w; u*w; |u-w|]", concatenate_compare, 4),
    "attention": Pairing("each sentence read in view of the other"),
}
