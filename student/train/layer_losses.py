"""How far a student's layers are from its teacher's stored ones (How to Distill your BERT, Table 1).

Each function returns a number per sequence, which depends on its tokens alone: the published code takes softmax and
mean over the padding, too, and weighs short sequences less.

Shapes: T tokens of N sequences end to end, S = N + 1 starts, H width, A heads, L tokens of the longest sequence, B rows
of a batch.
"""

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 0.07  # of contrast, in the published code
FAR_BELOW = -1e4  # a score whose share is 0, and whose product with that share is no NaN


def state_error(student_TH: Tensor, teacher_TH: Tensor, starts_S: Tensor) -> Tensor:
    """The mean squared error of each sequence's states, float32 [N] (Hid-Seq; Hid-CLS if it is one token long)."""
    error_T, lengths_N = ((student_TH - teacher_TH) ** 2).mean(dim=1), starts_S.diff()
    sequence_T = torch.arange(len(lengths_N), device=lengths_N.device).repeat_interleave(lengths_N)
    return error_T.new_zeros(len(lengths_N)).index_add(0, sequence_T, error_T) / lengths_N.clamp(min=1)


def direction_error(student_TH: Tensor, teacher_TH: Tensor, starts_S: Tensor) -> Tensor:
    """`state_error`, summed over H, of states scaled to length 1 (the patient loss, Sun et al. 2019), float32 [N]."""
    unit = functional.normalize
    return state_error(unit(student_TH, dim=1), unit(teacher_TH, dim=1), starts_S) * student_TH.shape[1]


def score_error(student_NALL: Tensor, teacher_NALL: Tensor, is_token_NL: Tensor) -> Tensor:
    """The mean squared error of each sequence's scores before the softmax, float32 [N] (Att-MSE)."""
    is_pair_NLL = is_token_NL[:, :, None] & is_token_NL[:, None]
    error_NLL = ((student_NALL - teacher_NALL) ** 2).mean(dim=1).masked_fill(~is_pair_NLL, 0)
    return error_NLL.sum(dim=(1, 2)) / is_pair_NLL.sum(dim=(1, 2)).clamp(min=1)


def share_divergence(student_NALL: Tensor, teacher_NALL: Tensor, is_token_NL: Tensor) -> Tensor:
    """KL(teacher || student) of the softmax over each row of scores, nats, mean over rows and heads, float32 [N].

    Of attention's scores it is Att-KL, of the relations of values, see `relations`, Val-KL.
    """
    scores = (teacher_NALL, student_NALL)
    hidden = ~is_token_NL[:, None, None]
    teacher, student = (functional.log_softmax(part.masked_fill(hidden, FAR_BELOW), dim=-1) for part in scores)
    divergence_NAL = (teacher.exp() * (teacher - student)).sum(dim=-1)
    divergence_NL = divergence_NAL.mean(dim=1).masked_fill(~is_token_NL, 0)
    return divergence_NL.sum(dim=1) / is_token_NL.sum(dim=1).clamp(min=1)


def contrast_error(likeness_BX: Tensor, place_BJ: Tensor) -> Tensor:
    """-log of the share that the first of J rows has in the softmax of their likenesses, nats, float32 [B] (InfoNCE).

    Args:
        likeness_BX: cosines of each row's states and the teacher's of X rows.
        place_BJ: int64, which of the X a row is compared with, the right one first.
    """
    return -functional.log_softmax(likeness_BX.gather(1, place_BJ) / TEMPERATURE, dim=1)[:, 0]


def relations(values_NALD: Tensor) -> Tensor:
    """How alike the values of two tokens are: v v' / sqrt(D), [N, A, L, L] (MiniLM, Wang et al. 2020)."""
    relations_NALL: Tensor = values_NALD @ values_NALD.mT / values_NALD.shape[-1] ** 0.5
    return relations_NALL
