"""Listening to a teacher's attention: its scores before mask and softmax, and its values.

transformers asks one function for the attention of every layer, one after the other. Ours listens, and lets the usual
one answer, so the model says what it always says.

Shapes: B batch, A heads, L tokens, D width of a head.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

LISTENING = "distill_listening"


@dataclass
class Heard:
    """What was heard in one forward pass.

    Attributes:
        of: the layers to listen to, counted from 1, by signal.
        said: [B, A, L, L] of float32 by signal and layer: scaled products of queries and keys, or of values.
        calls: layers that were heard in this pass.
    """

    of: dict[str, Sequence[int]]
    said: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    calls: int = 0

    def begin(self) -> None:
        """Forgets the pass before."""
        self.said, self.calls = {}, 0

    def hear(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **named: Any
    ) -> Any:
        """The usual attention of a layer, which is listened to."""
        self.calls += 1
        scaling = named["scaling"] if named.get("scaling") is not None else query.shape[-1] ** -0.5
        if self.calls in self.of.get("attention", ()):
            self.said["attention", self.calls] = _products(query, key, scaling)
        if self.calls in self.of.get("values", ()):
            self.said["values", self.calls] = _products(value, value, value.shape[-1] ** -0.5)
        return sdpa_attention_forward(module, query, key, value, mask, **named)


@contextmanager
def listening(model: Any, of: dict[str, Sequence[int]]) -> Iterator[Heard]:
    """Listens to the attention of a transformers model within the block; of nothing it leaves the model alone."""
    heard, usual = Heard(of), model.config._attn_implementation
    if not of:
        yield heard
        return
    AttentionInterface.register(LISTENING, heard.hear)
    AttentionMaskInterface.register(LISTENING, sdpa_mask)
    model.set_attn_implementation(LISTENING)
    try:
        yield heard
    finally:
        model.set_attn_implementation(usual)


def _products(one_BALD: torch.Tensor, other_BALD: torch.Tensor, scaling: float) -> torch.Tensor:
    with torch.autocast(one_BALD.device.type, enabled=False):
        return one_BALD.float() @ other_BALD.float().transpose(2, 3) * scaling
