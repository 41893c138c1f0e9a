"""Ordered matrix products. Shapes: B batch, L matrices, D side."""

import torch


def ordered_product(m_BLDD: torch.Tensor) -> torch.Tensor:
    """The product of each row's matrices from left to right, X_1 X_2 … X_L.

    Neighbours are multiplied pairwise, level by level: log2(L) batched products instead of L, with the same result
    because matrix products are associative. Identity matrices anywhere leave the result as it is.

    Args:
        m_BLDD: floating point, at least one matrix per row.

    Returns:
        product_BDD, in the dtype of the input.
    """
    while m_BLDD.shape[1] > 1:
        pairs, odd = divmod(m_BLDD.shape[1], 2)
        left_BLDD, right_BLDD = m_BLDD[:, : 2 * pairs].reshape(len(m_BLDD), pairs, 2, *m_BLDD.shape[2:]).unbind(2)
        product_BLDD = left_BLDD @ right_BLDD
        m_BLDD = torch.cat([product_BLDD, m_BLDD[:, -1:]], dim=1) if odd else product_BLDD
    return m_BLDD[:, 0]
