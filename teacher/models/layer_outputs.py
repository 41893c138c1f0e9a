"""The outputs of a teacher's layers: hidden states, attention scores, and products of values.

Shapes: B batch, L tokens, H hidden size, A heads, D width of a head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.arrays import Floats
from pipeline.errors import TeacherError
from pipeline.sets.record_parts import LayersName
from pipeline.text.tokenizer import Tokenized
from teacher.models.batches import NotFiniteError, collate, run_batches
from teacher.models.loaded import LoadedModel

FAMILIES = ("bert", "distilbert", "electra", "roberta")  # MiniLM is a BERT
OF_ATTENTION: tuple[LayersName, ...] = ("attention", "values")
RECORDED = "distill_recorded"  # the name of our attention function in transformers
LAYER_LIST = {"distilbert": "transformer"}  # attribute with a family's layers, if not ``encoder``
Layers = Mapping[LayersName, Sequence[int]]  # layer numbers by signal
LayerOutputs = dict[LayersName, dict[int, list[Floats]]]  # by signal and layer, an array for each input


def require_known_family(name: str, model_type: str) -> None:
    """Raises TeacherError unless the layers of a family, by its name in transformers, are supported."""
    if model_type not in FAMILIES:
        raise TeacherError(
            f"teacher {name}: belongs to the family {model_type!r}, whose layers are not supported, unlike "
            f"those of {', '.join(FAMILIES)}. Remove states, cls, attention and values from --keep."
        )


def layer_outputs(
    teacher: LoadedModel,
    inputs: Sequence[Tokenized],
    layers: Layers,
    max_tokens: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> LayerOutputs:
    """Returns the outputs of layers for inputs, in batches of similar lengths. Call it inside `inference_mode`.

    Returns: By signal and layer an array of float32 for each input, without padding: [L, H] for ``states``, [1, H] for
        ``cls``, [A, L, L] for ``attention`` and ``values``.

    Raises:
        NotFiniteError: if a number is not finite.
        TeacherError: if a single row does not fit the memory.
    """
    none: Any = [None] * len(inputs)
    outputs: LayerOutputs = {name: {layer: list(none) for layer in numbers} for name, numbers in layers.items()}

    def run(batch: list[int]) -> None:
        rows = [inputs[row] for row in batch]
        # A batch that ran out of memory may have recorded some layers already.
        states_BLH.clear()
        attention.clear()
        for name, by_layer in _batch_outputs(teacher, rows, layers, attention, states_BLH).items():
            for layer, array_B in by_layer.items():
                for row, array in zip(batch, array_B, strict=True):
                    outputs[name][layer][row] = array
        advance(len(batch))

    of_attention: dict[str, Sequence[int]] = {name: layers[name] for name in OF_ATTENTION if name in layers}
    with recorded_attention(teacher.model, of_attention) as attention, recorded_states(teacher.model) as states_BLH:
        run_batches([len(row.ids) for row in inputs], max_tokens, run)
    return outputs


@dataclass
class RecordedAttention:
    """Attention scores and values of one forward pass.

    transformers calls one function for the attention of every layer, one layer after the other. `forward` takes its
    place: it records, and leaves the computation to the usual function, so that the model's outputs stay the same.

    Attributes:
        layers: the layers to record, counted from 1, by signal.
        products: [B, A, L, L] of float32 by signal and layer: scaled products of queries and keys, or of values.
        calls: layers that have run in this pass.
    """

    layers: Mapping[str, Sequence[int]]
    products: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    calls: int = 0

    def clear(self) -> None:
        """Removes the records of the previous pass."""
        self.products, self.calls = {}, 0

    def forward(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **named: Any
    ) -> Any:
        """Computes the usual attention of a layer, and records it."""
        self.calls += 1
        # Some families pass the scaling explicitly, others rely on the usual 1 / sqrt(width of a head).
        scaling = named["scaling"] if named.get("scaling") is not None else query.shape[-1] ** -0.5
        if self.calls in self.layers.get("attention", ()):
            self.products["attention", self.calls] = _products(query, key, scaling)
        if self.calls in self.layers.get("values", ()):
            self.products["values", self.calls] = _products(value, value, value.shape[-1] ** -0.5)
        return sdpa_attention_forward(module, query, key, value, mask, **named)


@contextmanager
def recorded_attention(model: Any, layers: Mapping[str, Sequence[int]]) -> Iterator[RecordedAttention]:
    """Records the attention of a transformers model within the block. Without layers, the model does not change."""
    recorded, usual = RecordedAttention(layers), model.config._attn_implementation
    if not layers:
        yield recorded
        return
    AttentionInterface.register(RECORDED, recorded.forward)
    # Without a mask function of the same name transformers would build no mask, and padding would be attended to.
    AttentionMaskInterface.register(RECORDED, sdpa_mask)
    model.set_attn_implementation(RECORDED)
    try:
        yield recorded
    finally:
        model.set_attn_implementation(usual)


@contextmanager
def recorded_states(model: Any) -> Iterator[list[torch.Tensor]]:
    """Yields a list that a forward pass fills with the states of each layer [B, L, H]. 0 is the embeddings.

    Clear the list before the next pass. ``output_hidden_states`` would leave hooks in the model, which then cannot be
    pickled for another process. In a process that received a pickled model and created none, it returns no states.
    """
    states_BLH: list[torch.Tensor] = []
    layers = getattr(model.base_model, LAYER_LIST.get(model.config.model_type, "encoder")).layer

    def record_input(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        states_BLH.append(inputs[0])

    def record_output(_: Any, __: Any, output: Any) -> None:
        states_BLH.append(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as stack:
        stack.callback(layers[0].register_forward_pre_hook(record_input).remove)
        for layer in layers:
            stack.callback(layer.register_forward_hook(record_output).remove)
        yield states_BLH


def _batch_outputs(
    teacher: LoadedModel,
    inputs: Sequence[Tokenized],
    layers: Layers,
    attention: RecordedAttention,
    states_BLH: Sequence[torch.Tensor],
) -> LayerOutputs:
    """Returns the outputs of layers for a batch."""
    teacher.model.base_model(**collate(teacher, inputs))
    outputs: LayerOutputs = {}
    for name, numbers in layers.items():
        outputs[name] = {}
        lengths = [1 if name == "cls" else len(row.ids) for row in inputs]
        for layer in numbers:
            # Padding is cut off, so that stored blocks do not depend on the batch a row was in.
            if name in OF_ATTENTION:
                block_BALL = attention.products[name, layer].cpu().numpy()
                array_B = [block_BALL[row, :, :length, :length] for row, length in enumerate(lengths)]
            else:
                state_BLH = states_BLH[layer][:, : max(lengths)].float().cpu().numpy()
                array_B = [state_BLH[row, :length] for row, length in enumerate(lengths)]
            for array, row in zip(array_B, inputs, strict=True):
                if not np.isfinite(array).all():
                    raise NotFiniteError(f"teacher {teacher.name}: {name} of layer {layer} are NaN or Inf", row)
            outputs[name][layer] = array_B
    return outputs


def _products(one_BALD: torch.Tensor, other_BALD: torch.Tensor, scaling: float) -> torch.Tensor:
    # Without autocast: 16-bit products would be rounded before they are stored.
    with torch.autocast(one_BALD.device.type, enabled=False):
        return one_BALD.float() @ other_BALD.float().transpose(2, 3) * scaling
