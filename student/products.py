"""Ordered matrix products. Shapes: B batch, L matrices, D side."""

import torch

GROUP = 8


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


def exported_product(m_BLDD: torch.Tensor, longest: int) -> torch.Tensor:
    """`ordered_product` for a graph that takes any length up to ``longest``, in which no loop may depend on it.

    First groups of `GROUP` matrices, as many as there are, then as many groups as the longest input has; identities
    fill up what is missing.

    Returns:
        product_BDD; an input of more groups than the longest is an error when the graph is run.
    """
    batch_size, length, side, _ = m_BLDD.shape
    identity_BLDD = torch.eye(side, device=m_BLDD.device).expand(batch_size, 1, -1, -1)
    groups, most_groups = (length + GROUP - 1) // GROUP, (longest + GROUP - 1) // GROUP
    m_BLDD = torch.cat([m_BLDD, identity_BLDD.expand(-1, GROUP - 1, -1, -1)], dim=1)[:, : GROUP * groups]
    m_BDD = ordered_product(m_BLDD.reshape(batch_size * groups, GROUP, side, side))
    missing_BLDD = identity_BLDD.expand(-1, most_groups - groups, -1, -1)
    m_BLDD = torch.cat([m_BDD.view(batch_size, groups, side, side), missing_BLDD], dim=1)
    return ordered_product(m_BLDD.view(batch_size, most_groups, side, side))


def prefix_products(m_BLDD: torch.Tensor) -> torch.Tensor:
    """All the products that end at a matrix: X_1, X_1 X_2, …, X_1 X_2 … X_L.

    One after the other: a parallel scan does more products than it saves steps, and loses on a CPU.

    Args:
        m_BLDD: floating point, at least one matrix per row.

    Returns:
        products_BLDD, in the dtype of the input.
    """
    first_BDD, *others = m_BLDD.unbind(1)
    products = [first_BDD]
    for m_BDD in others:
        products.append(products[-1] @ m_BDD)
    return torch.stack(products, dim=1)
