"""What a teacher's layers say of inputs. Shapes: B batch, L tokens, H hidden size, A heads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.arrays import Floats
from pipeline.device import to_device
from pipeline.errors import TeacherError
from pipeline.sets.record_parts import LayersName
from pipeline.text.tokenizer import Tokenized
from teacher.models.attention import Heard, listening
from teacher.models.batches import NotFiniteError, collate, run_batches
from teacher.models.hidden_states import noting_states
from teacher.models.loaded import LoadedModel

FAMILIES = ("bert", "distilbert", "electra", "roberta")  # MiniLM is a BERT
OF_ATTENTION: tuple[LayersName, ...] = ("attention", "values")
Asked = Mapping[LayersName, Sequence[int]]  # layers by signal
Said = dict[LayersName, dict[int, list[Floats]]]  # by signal and layer, an array for each input


def require_known_family(name: str, model_type: str) -> None:
    """Raises TeacherError unless it is known what the layers of models of a family are, by its name in transformers."""
    if model_type not in FAMILIES:
        raise TeacherError(
            f"teacher {name}: is of the family {model_type!r}, of whose layers nothing can be stored yet, "
            f"only of those of {', '.join(FAMILIES)}; leave --states, --cls, --attention and --values out"
        )


def layers_said(
    teacher: LoadedModel,
    inputs: Sequence[Tokenized],
    asked: Asked,
    max_tokens: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Said:
    """What layers say of inputs, asked in batches of like length. Call it inside `inference_mode`.

    Args:
        teacher: on its device.
        inputs: tokenised inputs.
        asked: signals and layers.
        max_tokens: most padded tokens per batch.
        advance: called with the number of rows after each batch.

    Returns:
        By signal and layer an array of float32 for each input, of its own tokens alone: of ``states`` [L, H], of
        ``cls`` [1, H], of ``attention`` and ``values`` [A, L, L].

    Raises:
        NotFiniteError: if a number is not finite.
        TeacherError: if a single row does not fit the memory.
    """
    none: Any = [None] * len(inputs)
    said: Said = {name: {layer: list(none) for layer in layers} for name, layers in asked.items()}

    def run(batch: list[int]) -> None:
        rows = [inputs[row] for row in batch]
        states_BLH.clear()
        for name, layers in _ask(teacher, rows, asked, heard, states_BLH).items():
            for layer, array_B in layers.items():
                for row, array in zip(batch, array_B, strict=True):
                    said[name][layer][row] = array
        advance(len(batch))

    of_attention: dict[str, Sequence[int]] = {name: asked[name] for name in OF_ATTENTION if name in asked}
    with listening(teacher.model, of_attention) as heard, noting_states(teacher.model) as states_BLH:
        run_batches([len(row.ids) for row in inputs], max_tokens, run)
    return said


def _ask(
    teacher: LoadedModel, inputs: Sequence[Tokenized], asked: Asked, heard: Heard, states_BLH: Sequence[torch.Tensor]
) -> Said:
    """What layers say of a batch."""
    heard.begin()
    batch = {name: to_device(values, teacher.model.device) for name, values in collate(teacher, inputs).items()}
    teacher.model.base_model(**batch)
    lengths = [len(row.ids) for row in inputs]
    said: Said = {}
    for name, layers in asked.items():
        if name in OF_ATTENTION:
            said[name] = {layer: _of_pairs(heard.said[name, layer], lengths) for layer in layers}
        else:
            first = [1] * len(lengths) if name == "cls" else lengths
            said[name] = {layer: _of_tokens(states_BLH[layer], first) for layer in layers}
    for name, by_layer in said.items():
        for layer, array_B in by_layer.items():
            for array, row in zip(array_B, inputs, strict=True):
                if not np.isfinite(array).all():
                    raise NotFiniteError(
                        f"teacher {teacher.name}: {name} of layer {layer} are NaN or Inf; "
                        "fp16 overflows with some models, try --precision bf16 or fp32",
                        row,
                    )
    return said


def _of_tokens(state_BLH: torch.Tensor, lengths: Sequence[int]) -> list[Floats]:
    """The states of the first tokens of each row, as many as it has."""
    state = state_BLH[:, : max(lengths)].float().cpu().numpy()
    return [state[row, :length] for row, length in enumerate(lengths)]


def _of_pairs(block_BALL: torch.Tensor, lengths: Sequence[int]) -> list[Floats]:
    """What is said of each two tokens of each row."""
    blocks = block_BALL.cpu().numpy()
    return [blocks[row, :, :length, :length] for row, length in enumerate(lengths)]
