"""The states of a teacher's layers, by hooks that are gone afterwards.

transformers' own stay in the model, which then cannot be sent to another process; and in a process that has got a model
and made none, it gives no states.

Shapes: B batch, L tokens, H hidden size.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

ELSEWHERE = {"distilbert": "transformer"}  # than in ``encoder``, by family


@contextmanager
def noting_states(model: Any) -> Iterator[list[torch.Tensor]]:
    """A list that a forward pass of a transformers model within the block fills: of each layer [B, L, H], from 0.

    The first are those of the embeddings. Empty the list before the next pass.
    """
    states_BLH: list[torch.Tensor] = []
    layers = getattr(model.base_model, ELSEWHERE.get(model.config.model_type, "encoder")).layer

    def note_input(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        states_BLH.append(inputs[0])

    def note_output(_: Any, __: Any, output: Any) -> None:
        states_BLH.append(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        stack.callback(layers[0].register_forward_pre_hook(note_input).remove)
        for layer in layers:
            stack.callback(layer.register_forward_hook(note_output).remove)
        yield states_BLH
