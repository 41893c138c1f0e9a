"""From two sentences' representations to one. Shapes: B batch, F features; any axes between."""

import torch


def diff_cat(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """DiffCat: [u ; w ; |u - w|], three times as wide (paper, section III-C)."""
    return torch.cat([u_BF, w_BF, (u_BF - w_BF).abs()], dim=-1)


def concatenate_compare(u_BF: torch.Tensor, w_BF: torch.Tensor) -> torch.Tensor:
    """Concatenate-compare: [u ; w ; u * w ; |u - w|], four times as wide (Tang et al. 2019)."""
    return torch.cat([u_BF, w_BF, u_BF * w_BF, (u_BF - w_BF).abs()], dim=-1)


COMPARE = {"diffcat": diff_cat, "compare": concatenate_compare}
WIDTHS = {"diffcat": 3, "compare": 4, "joint": 1}  # of the result, as multiples of one sentence's
