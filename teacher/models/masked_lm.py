"""Loads masked language models and predicts at masked positions only.

Shapes: B batch, L tokens with special ones, P masked positions of the batch, H hidden size, V vocabulary.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM

from pipeline import console
from pipeline.arrays import Ints, Ragged
from pipeline.errors import TeacherError
from pipeline.sets.codecs import Decoder
from teacher.models.loaded import (
    LoadedModel,
    LoadedTokenizer,
    load_config,
    load_tokenizer,
    load_weights,
    require_encoder,
)

WIDTH_STEP, POSITIONS_STEP = 8, 32


@dataclass(frozen=True)
class MlmTokenizer(LoadedTokenizer):
    """The tokenizer of a masked LM, which has a mask token."""

    mask_id: int


@dataclass(frozen=True)
class MaskedLm(LoadedModel):
    """A masked LM for predictions or training."""

    tokens: MlmTokenizer

    @property
    def vocabulary_size(self) -> int:
        """V, the number of the model's outputs."""
        return int(self.model.get_output_embeddings().weight.shape[0])


def load_mlm_tokenizer(name: str, revision: str | None, max_seq_length: int) -> MlmTokenizer:
    """Loads the tokenizer of a masked LM.

    Raises:
        DataError: if it cannot be found or read.
        TeacherError: if it has no mask token, or does not fit its model.
    """
    loaded = load_tokenizer(name, revision, load_config(name, revision), max_seq_length)
    if loaded.mask_id is None:
        raise TeacherError(f"teacher {name}: its tokenizer has no mask token, so it is not a masked language model")
    return MlmTokenizer(
        loaded.tokenizer, loaded.pad_id, loaded.mask_id, loaded.reads_token_types, loaded.special_ids, loaded.frame
    )


def load_masked_lm(name: str, revision: str | None, max_seq_length: int, new_head: bool = False) -> MaskedLm:
    """Loads a masked LM and its tokenizer.

    With ``new_head``, an encoder without a prediction head gets a new one, for training.

    Raises:
        DataError: if the model cannot be found or read.
        TeacherError: if it lacks weights, has no mask token, or does not fit its tokenizer. A new head may be missing.
    """
    console.note(f"loading masked LM {name}")
    tokens = load_mlm_tokenizer(name, revision, max_seq_length)
    model, missing = load_weights(AutoModelForMaskedLM, name, revision)
    if new_head:
        require_encoder(name, missing, f"{model.base_model_prefix}.")
    elif missing:
        raise TeacherError(
            f"teacher {name}: has no weights for {', '.join(missing[:3])}: it is not a trained masked language model. "
            "Train it first with `distill finetune-teacher --objective mlm`"
        )
    if model.get_output_embeddings() is None:
        raise TeacherError(f"teacher {name}: {type(model).__name__} does not define its decoder layer")
    return MaskedLm(name, revision, model, tokens)


def decoder_of(lm: MaskedLm) -> Decoder:
    """Returns the weights and biases of the model's last layer, float32, with zeros for missing biases."""
    layer = lm.model.get_output_embeddings()
    bias_V = layer.bias if layer.bias is not None else layer.weight.new_zeros(len(layer.weight))
    return Decoder(layer.weight.detach().float(), bias_V.detach().float())


def predict_masked(
    lm: MaskedLm,
    ids: Ragged,
    positions: Ragged,
    rows: Sequence[int],
    model: Any = None,
    second_starts: Ints | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the decoder's input and the logits of a masked LM at chosen positions of some sequences.

    Its decoder, more than half of the work of a small model, runs only at these positions. Widths and numbers of
    positions are rounded up: oneDNN keeps compiled code for each shape, which may be gigabytes if all shapes differ.

    Args:
        lm: the model on its device.
        ids: sequences without special tokens.
        positions: positions in the sequences.
        rows: numbers of the sequences.
        model: called instead of the model itself, such as its wrapper for several processes.
        second_starts: for pairs, the start of the second part in each sequence.

    Returns: hidden_PH, the decoder's input, and logits_PV, both float32, with positions in the order of ``rows``.
    """
    before, after = lm.tokens.frame
    framed = Ragged.of([[*before, *ids[row].tolist(), *after] for row in rows])
    ids_BL = torch.from_numpy(framed.padded(range(len(rows)), lm.tokens.pad_id))
    # Rounded up to a few widths, because oneDNN compiles and keeps a kernel for every shape it meets.
    ids_BL = functional.pad(ids_BL, (0, -ids_BL.shape[1] % WIDTH_STEP), value=lm.tokens.pad_id)
    lengths_B = torch.from_numpy(framed.lengths)
    attention_BL = torch.arange(ids_BL.shape[1]) < lengths_B[:, None]
    row_P = np.repeat(np.arange(len(rows)), positions.lengths[np.asarray(rows)])
    place_P = positions.take(rows).flat + len(before)
    device, num_positions = lm.model.device, len(row_P)
    fill = (0, -num_positions % POSITIONS_STEP)
    # Padding repeats the last position, which is always valid. The extra results are dropped at the end.
    chosen = (torch.from_numpy(np.pad(part, fill, mode="edge")).to(device) for part in (row_P, place_P))
    inputs = {"input_ids": ids_BL, "attention_mask": attention_BL}
    if second_starts is not None and lm.tokens.reads_token_types:
        start_B = torch.from_numpy(second_starts[np.asarray(rows)]) + len(before)
        inputs["token_type_ids"] = (torch.arange(ids_BL.shape[1]) >= start_B[:, None]) & attention_BL
    with _decoding_only(lm.model, tuple(chosen)) as hidden:
        call = lm.model if model is None else model
        logits_PV = call(**{name: value.long().to(device) for name, value in inputs.items()}).logits
    return hidden[0][:num_positions].float(), logits_PV[:num_positions].float()


@contextmanager
def _decoding_only(model: Any, chosen: tuple[torch.Tensor, ...]) -> Any:
    """Makes the model decode only chosen positions in the block. Yields a list that receives the decoder's input."""
    hidden: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden.append(args[0][chosen])
        return (hidden[-1], *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        yield hidden
    finally:
        handle.remove()
