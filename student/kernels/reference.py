"""The readable backend: plain torch for any device and any floating point type, differentiable by autograd.

Shapes: T tokens of all sequences end to end, N sequences, S = N + 1 starts, L tokens of the longest, V rows of a table,
E vector size, D matrix side, M = D² numbers of a matrix (rows one after the other), F features of a sequence, P of a
token, B batch, X any.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

# Eight matrices per group let an export multiply within groups by three levels, whatever the number of groups.
GROUP = 8
# Half-precision tables store the distance from the neutral row, because float16 near 1 is too coarse for X = I + noise.
RESIDUALS = (torch.float16, torch.bfloat16)

# vectors_VE, forward_VM, backward_VM, each of which may be None. A backward table needs a forward one. A float32 table
# contains the rows themselves. A float16 or bfloat16 table contains differences from the neutral row: 0, or I.
Tables = tuple[Tensor | None, Tensor | None, Tensor | None]
# grad_vectors_TE, grad_forward_TM, grad_backward_TM: a row per token. The gradient of a table's row is the sum over its
# tokens.
RowGradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def reduce(tables: Tables, ids_T: Tensor, starts_S: Tensor, with_max: bool = False) -> Tensor:
    """Returns [v_1 + … + v_L, max v_t, X_1 X_2 … X_L, Y_L … Y_2 Y_1] for each sequence.

    Args:
        tables: the vectors v, the matrices X and Y.
        ids_T: int64, all sequences end to end.
        starts_S: int64. Sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``. An empty one has sum and maximum 0 and
            product I.
        with_max: whether the features also contain the maxima of the vectors' numbers.

    Returns:
        features_NF, F = E (+ E) + M + M, less the parts without a table.
    """
    vectors_VE, forward_VM, backward_VM = tables
    parts = []
    # The order of the parts is that of the published code: CBOW first, then CMOW forward, then CMOW backward.
    if vectors_VE is not None:
        parts.append(_vectors(vectors_VE, ids_T, starts_S).sum(1))
        if with_max:
            parts.append(maxima(vectors_VE, ids_T, starts_S))
    if forward_VM is not None:
        parts.append(ordered_product(_matrices(forward_VM, ids_T, starts_S)).flatten(1))
    if backward_VM is not None:
        # The backward table Y is read from the last token to the first, so its product differs from the forward one.
        parts.append(ordered_product(_matrices(backward_VM, ids_T, starts_S).flip(1)).flatten(1))
    return torch.cat(parts, dim=1)


def maxima(vectors_VE: Tensor, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    """Returns maxima_NE of the vectors of each sequence, 0 for an empty one."""
    v_NLE = _vectors(vectors_VE, ids_T, starts_S)
    # Padding is zero, and a zero would win against a sequence whose numbers are all negative, so the mask is needed.
    is_token_NL = torch.arange(v_NLE.shape[1], device=starts_S.device) < starts_S.diff().unsqueeze(1)
    return largest(v_NLE, is_token_NL)


def largest(v_NLE: Tensor, is_token_NL: Tensor) -> Tensor:
    """Returns the largest of the tokens' numbers, or 0 without tokens.

    The gradient goes to the first token with the largest number.

    Returns:
        maxima_NE, in the dtype of the input.
    """
    # Minus infinity never wins against a token, and the `where` below replaces it for sequences without any token.
    largest_NE = v_NLE.masked_fill(~is_token_NL.unsqueeze(2), -torch.inf).max(dim=1).values
    # Tokens are counted because ONNX has no `any`: its maximum of an axis without columns would be true.
    has_tokens_N1 = is_token_NL.sum(dim=1, keepdim=True) > 0
    return largest_NE.where(has_tokens_N1, torch.zeros_like(largest_NE))


def reduce_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    grad_NF: Tensor,
    out: RowGradients | None = None,
    with_max: bool = False,
) -> RowGradients:
    """Returns the gradients of `reduce` with respect to the rows of each token.

    Args:
        tables: see `reduce`, in float32.
        ids_T: all sequences.
        starts_S: their starts.
        grad_NF: gradients of the features.
        out: buffers of at least T rows, which are written and returned.
        with_max: see `reduce`.
    """
    return _gradients(partial(reduce, with_max=with_max), tables, ids_T, starts_S, grad_NF, out)


def scan(tables: Tables, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    """Returns sums and products of the prefix that ends at each token, and of the suffix that begins at it.

    Position t contains [v_1 + … + v_t, X_1 … X_t] and, with a backward table, [v_t + … + v_L, Y_L … Y_t].

    Returns:
        features_TP, in the order of ``ids_T``.
    """
    vectors_VE, forward_VM, backward_VM = tables
    parts = []
    if vectors_VE is not None:
        # The prefix includes the token itself, which is safe for masked words because the student reads `[MASK]` there.
        parts.append(_vectors(vectors_VE, ids_T, starts_S).cumsum(1))
    if forward_VM is not None:
        parts.append(prefix_products(_matrices(forward_VM, ids_T, starts_S)).flatten(2))
    if backward_VM is not None:
        # The sum over a whole sequence has no direction, but prefix and suffix sums differ, so the scan stores both.
        if vectors_VE is not None:
            parts.append(_vectors(vectors_VE, ids_T, starts_S).flip(1).cumsum(1).flip(1))
        # The second flip puts each suffix product at its own token. Without it, as in the published code, products are
        # at the right token only in the middle of a sequence.
        parts.append(prefix_products(_matrices(backward_VM, ids_T, starts_S).flip(1)).flip(1).flatten(2))
    return torch.cat(parts, dim=2)[_places(starts_S)]


def scan_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    features_TP: Tensor,
    grad_TP: Tensor,
    out: RowGradients | None = None,
) -> RowGradients:
    """Returns the gradients of `scan`, whose result is ``features_TP``, with respect to the rows of tokens."""
    return _gradients(scan, tables, ids_T, starts_S, grad_TP, out)


def _gradients(
    function: Callable[[Tables, Tensor, Tensor], Tensor],
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    grad: Tensor,
    out: RowGradients | None,
) -> RowGradients:
    with torch.enable_grad():
        # Each token gets its own copy of its row, so that gradients come out per token instead of per table row.
        rows = [table if table is None else table.detach()[ids_T].requires_grad_() for table in tables]
        places_T = torch.arange(len(ids_T), device=ids_T.device)
        features = function((rows[0], rows[1], rows[2]), places_T, starts_S)
    gradients = iter(torch.autograd.grad(features, [row for row in rows if row is not None], grad))
    vectors, forward, backward = (None if row is None else next(gradients) for row in rows)
    if out is None:
        return vectors, forward, backward
    for buffer_TX, gradient_TX in zip(out, (vectors, forward, backward), strict=True):
        if buffer_TX is not None and gradient_TX is not None:
            # The buffer belongs to the caller and may be longer, because one buffer serves batches of every size.
            buffer_TX[: len(ids_T)] = gradient_TX
    return out


def _vectors(table_VE: Tensor, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    return _padded(table_VE, ids_T, starts_S, table_VE.new_zeros(table_VE.shape[1]))


def _matrices(table_VM: Tensor, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    side = math.isqrt(table_VM.shape[1])
    identity_M = torch.eye(side, dtype=table_VM.dtype, device=table_VM.device).flatten()
    m_NLM = _padded(table_VM, ids_T, starts_S, identity_M)
    return m_NLM.view(*m_NLM.shape[:2], side, side)


def _padded(table_VX: Tensor, ids_T: Tensor, starts_S: Tensor, neutral_X: Tensor) -> Tensor:
    """Returns the rows of the tokens [N, L, X], with the neutral row after the end of a sequence."""
    rows_TX = table_VX[ids_T]
    # The sum is computed in float32, because the stored distance would be lost in a float16 identity.
    if table_VX.dtype in RESIDUALS:
        neutral_X, rows_TX = neutral_X.float(), neutral_X.float() + rows_TX.float()
    # `amax` raises an error for a batch without sequences, so the maximum is taken over a Python list.
    longest = max([1, *starts_S.diff().tolist()])
    # The expanded neutral row is a single row in memory, so `index_put` makes a new tensor instead of writing to it.
    return neutral_X.expand(len(starts_S) - 1, longest, -1).index_put(_places(starts_S), rows_TX)


def _places(starts_S: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sequence and position of each token [T]."""
    sequences_N = torch.arange(len(starts_S) - 1, device=starts_S.device)
    sequence_T = torch.repeat_interleave(sequences_N, starts_S.diff())
    return sequence_T, torch.arange(len(sequence_T), device=starts_S.device) - starts_S[sequence_T]


def ordered_product(m_BLDD: torch.Tensor, length: int | None = None) -> torch.Tensor:
    """Returns the product of each row's matrices from left to right, X_1 X_2 … X_L.

    Neighbours are multiplied pairwise, level by level: log2(L) batched products instead of L, with the same result
    because matrix products are associative. Identity matrices do not change the result.

    Args:
        m_BLDD: floating point, at least one matrix per row.
        length: L as a number, where the shape is a symbol that an exporter would fix at the length of its example.

    Returns:
        product_BDD, in the dtype of the input.
    """
    length = m_BLDD.shape[1] if length is None else length
    while length > 1:
        # Only neighbours are paired, because matrix products are associative but not commutative.
        pairs, odd = divmod(length, 2)
        # `len` would also be a number in an exported graph. It would fail, and be traced again in a slower way.
        left_BLDD, right_BLDD = m_BLDD[:, : 2 * pairs].reshape(m_BLDD.shape[0], pairs, 2, *m_BLDD.shape[2:]).unbind(2)
        product_BLDD = left_BLDD @ right_BLDD
        # An odd matrix waits at the end for the next level, which keeps the order from left to right.
        m_BLDD = torch.cat([product_BLDD, m_BLDD[:, -1:]], dim=1) if odd else product_BLDD
        length = pairs + odd
    return m_BLDD[:, 0]


def exported_product(m_BLDD: torch.Tensor, longest: int) -> torch.Tensor:
    """Like `ordered_product`, for a graph with any length up to ``longest``, in which no loop may depend on the length.

    First multiplies within groups of `GROUP` matrices, and then as many groups as the longest input has. Identities
    fill the rest.

    Returns: product_BDD. An input with more groups than the longest one is an error when the graph runs.
    """
    batch_size, length, side, _ = m_BLDD.shape
    identity_BLDD = torch.eye(side, device=m_BLDD.device).expand(batch_size, 1, -1, -1)
    groups, most_groups = (length + GROUP - 1) // GROUP, (longest + GROUP - 1) // GROUP
    # Adding GROUP - 1 identities and truncating avoids a remainder, which an exporter would freeze at the example's
    # length.
    m_BLDD = torch.cat([m_BLDD, identity_BLDD.expand(-1, GROUP - 1, -1, -1)], dim=1)[:, : GROUP * groups]
    m_BDD = ordered_product(m_BLDD.reshape(batch_size * groups, GROUP, side, side), GROUP)
    missing_BLDD = identity_BLDD.expand(-1, most_groups - groups, -1, -1)
    m_BLDD = torch.cat([m_BDD.view(batch_size, groups, side, side), missing_BLDD], dim=1)
    return ordered_product(m_BLDD.view(batch_size, most_groups, side, side), most_groups)


def prefix_products(m_BLDD: torch.Tensor) -> torch.Tensor:
    """Returns the product of the matrices up to each one: X_1, X_1 X_2, …, X_1 X_2 … X_L.

    They are computed one after the other: a parallel scan needs more products, and is slower on a CPU.

    Args:
        m_BLDD: floating point, at least one matrix per row.

    Returns:
        products_BLDD, in the dtype of the input.
    """
    first_BDD, *others = m_BLDD.unbind(1)
    products = [first_BDD]
    # A parallel scan needs log2(L) times as many products, and on a CPU the number of products decides the time.
    for m_BDD in others:
        products.append(products[-1] @ m_BDD)
    return torch.stack(products, dim=1)


def exported_prefixes(m_BLM: torch.Tensor, longest: int) -> torch.Tensor:
    """Like `prefix_products`, for matrices as vectors and a graph with any length up to ``longest``.

    Each step multiplies the product at a position by the product that ends before it, so that log2(longest) steps are
    enough for any length. A loop over the tokens could not be exported.

    Returns:
        products_BLM.
    """
    side = math.isqrt(m_BLM.shape[2])
    m_BLDD = m_BLM.view(*m_BLM.shape[:2], side, side)
    length, step = m_BLM.shape[1], 1
    identity_BLDD = torch.eye(side, device=m_BLM.device).expand(m_BLM.shape[0], 1, -1, -1)
    # This is the scan of Hillis and Steele: after k rounds, each place holds the product of its last 2^k matrices.
    while step < longest:
        before_BLDD = torch.cat([identity_BLDD.expand(-1, step, -1, -1), m_BLDD], dim=1)[:, :length]
        m_BLDD = before_BLDD @ m_BLDD
        step *= 2
    return m_BLDD.flatten(2)
