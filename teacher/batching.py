"""Which rows go through the teacher together: rows of like length, bounded by padded tokens."""

from collections.abc import Sequence


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Packs rows into batches, longest first, so that a batch too large for the memory shows at once.

    Args:
        lengths: tokens per row.
        max_tokens: most padded tokens (rows times longest) per batch; a longer row goes alone.

    Returns:
        Row numbers per batch; every row once. Depends on the lengths alone.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in order:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches
