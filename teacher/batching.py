"""Which rows go through the teacher together: rows of like length, bounded by padded tokens."""

from collections.abc import Sequence

import numpy as np

FULL_BATCH = 16  # a batch more costs as much time as a sixteenth of a full one; measured on CPUs, between fp32 and bf16


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Packs rows into batches, longest first, so that a batch too large for the memory shows at once.

    Rows are sorted by length and cut where padding and number of batches together cost least, by dynamic programming
    from the shortest row on: the best cut of rows n and after is the best first batch plus the best cut of the rest.

    Args:
        lengths: tokens per row.
        max_tokens: most padded tokens (rows times longest) per batch; a longer row goes alone.

    Returns:
        Row numbers per batch; every row once. Depends on the lengths and the budget alone.
    """
    length_N = np.asarray(lengths, dtype=np.int64)
    order_N = np.argsort(-length_N, kind="stable")
    stops = _cut(length_N[order_N], max_tokens)
    batches, start = [], 0
    while start < len(order_N):
        batches.append(order_N[start : stops[start]].tolist())
        start = stops[start]
    return batches


def _cut(descending_N: np.ndarray, max_tokens: int) -> list[int]:
    """For each row, where the batch that begins with it ends if it and all after it are cut best [N]."""
    num_rows = len(descending_N)
    counts = np.arange(1, num_rows + 1)
    cost = np.zeros(num_rows + 1, dtype=np.int64)  # of the rows from here on, in sixteenths of a token
    stops = [0] * num_rows
    for row, longest in reversed(list(enumerate(descending_N.tolist()))):
        most = min(num_rows - row, max(1, max_tokens // max(1, longest)))
        costs = counts[:most] * (FULL_BATCH * longest) + cost[row + 1 : row + 1 + most]
        size = int(costs.argmin())
        cost[row] = costs[size] + max_tokens
        stops[row] = row + 1 + size
    return stops
