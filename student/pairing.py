"""From two sentences' representations to one. Shapes: B batch, F features."""

import torch


def diff_cat(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """DiffCat: [u ; w ; |u - w|], three times as wide (paper, section III-C)."""
    return torch.cat([u_BF, w_BF, (u_BF - w_BF).abs()], dim=1)
