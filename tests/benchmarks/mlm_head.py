"""The masked-LM head forward and backward, with the loss over a teacher's 64 likeliest tokens and their rest."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from pipeline.sets.codecs import Sparse
from student.losses.masked_words import HeadPass

POSITIONS, FEATURES, VOCABULARY, TOP_K = 506, 1600, 30522, 64


def alternatives() -> dict[str, Callable[[], object]]:
    """The same gradients by autograd over whole matrices and by the pass in chunks, both in float32 and in bf16."""
    torch.manual_seed(0)
    head, features_PF = nn.Linear(FEATURES, VOCABULARY), torch.randn(POSITIONS, FEATURES, requires_grad=True)
    target_P = torch.randint(VOCABULARY, (POSITIONS,))
    token_PK = torch.rand(POSITIONS, VOCABULARY).topk(TOP_K, dim=1).indices
    p_PK = 0.9 * torch.randn(POSITIONS, TOP_K).softmax(dim=1)
    rest_P = 1 - p_PK.sum(dim=1)
    position_PK = torch.arange(POSITIONS)[:, None].expand_as(token_PK)
    teacher = Sparse(position_PK.flatten(), token_PK.flatten(), p_PK.flatten(), rest_P)

    def plain(bf16: bool) -> None:
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits_PV = head(features_PF)
        log_q_PV = logits_PV.float().log_softmax(dim=1)
        log_q_PK = log_q_PV.gather(1, token_PK)
        kept_P = (p_PK * log_q_PK).sum(dim=1) + rest_P * torch.log1p(-log_q_PK.exp().sum(dim=1).clamp(max=1 - 1e-6))
        loss = (functional.nll_loss(log_q_PV, target_P) - kept_P.mean()) / 2
        loss.backward()

    def chunked(dtype: torch.dtype) -> Callable[[], object]:
        head_pass = HeadPass(head, dtype)

        def run() -> None:
            teacher_of = lambda part: teacher.part(part.start, part.stop)  # noqa: E731
            loss = head_pass.loss(features_PF, target_P, teacher_of, 0.5, 1.0, 1 / POSITIONS)
            loss.backward()  # type: ignore[no-untyped-call]

        return run

    return {
        "float32, autograd": lambda: plain(False),
        "bf16 autocast, autograd": lambda: plain(True),
        "float32, one pass in chunks": chunked(torch.float32),
        "bf16, one pass in chunks": chunked(torch.bfloat16),
    }
