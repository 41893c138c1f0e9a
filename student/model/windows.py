"""Long sequences read by windows, so that their sums do not grow and their products do not vanish with their length.

Shapes: N sequences, S = N + 1 starts, W windows of all sequences, F features.
"""

import torch


def window_starts(starts_S: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the windows of sequences start, and whose they are.

    Args:
        starts_S: int64; sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
        size: tokens of a window; the last one of a sequence has what is left, and an empty sequence an empty window.

    Returns:
        Starts, as of sequences, int64 [W + 1], and numbers of sequences, int64 [W].
    """
    counts_N = (starts_S.diff() + size - 1).div(size, rounding_mode="floor").clamp(min=1)
    sequence_W = torch.arange(len(counts_N), device=starts_S.device).repeat_interleave(counts_N)
    first_N = counts_N.cumsum(0) - counts_N
    place_W = torch.arange(len(sequence_W), device=starts_S.device) - first_N[sequence_W]
    return torch.cat([starts_S[sequence_W] + place_W * size, starts_S[-1:]]), sequence_W


def joined(features_WF: torch.Tensor, sequence_W: torch.Tensor, maxima: slice) -> torch.Tensor:
    """The means of the windows' features, and of those that are maxima the largest.

    Args:
        features_WF: of the windows.
        sequence_W: as `window_starts` gives it.
        maxima: which features are maxima.

    Returns:
        features_NF.
    """
    counts_N = sequence_W.bincount()
    sums_NF = features_WF.new_zeros(len(counts_N), features_WF.shape[1]).index_add(0, sequence_W, features_WF)
    means_NF = sums_NF / counts_N.unsqueeze(1)
    largest_WF = features_WF[:, maxima]
    index_WF = sequence_W.unsqueeze(1).expand_as(largest_WF)
    largest_NF = means_NF[:, maxima].scatter_reduce(0, index_WF, largest_WF, "amax", include_self=False)
    return torch.cat([means_NF[:, : maxima.start], largest_NF, means_NF[:, maxima.stop :]], dim=1)
