"""Loads sentence encoders, pools their last hidden states, and computes vectors of their vocabulary.

A teacher's token vectors are its embeddings, not outputs of its last layer, because fine-tuning adapts that layer to
the task alone. On STS-B, students that start from the embeddings of a fine-tuned MiniLM reach 80.9. From its higher
layers they reach 79.2 down to 73.9. For sentence encoders that were not fine-tuned, the last hidden states work better
than either.

Shapes: N sentences, B batch, L tokens with special ones, H hidden size, V vocabulary, W width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import cached_file

from pipeline import console
from pipeline.arrays import Floats, Ragged
from pipeline.errors import DataError, TeacherError
from pipeline.sets.codec_text import Pooling
from pipeline.sets.signals.side_files import EMBEDDINGS
from pipeline.text.tokenizer import reported
from pipeline.untrusted import parse_json
from teacher.models.batches import collate, framed, run_batches
from teacher.models.loaded import (
    LoadedModel,
    load_config,
    load_tokenizer,
    load_weights,
    require_encoder,
    require_model_folder,
)

POOLING_FILE = "1_Pooling/config.json"  # written by sentence-transformers


@dataclass(frozen=True)
class SentenceEncoder(LoadedModel):
    """An encoder of sentences. Its pooling makes one vector of the tokens' last states."""

    pooling: Pooling

    @property
    def width(self) -> int:
        """H, the width of a vector."""
        return int(self.model.config.hidden_size)


def load_encoder(name: str, revision: str | None, max_seq_length: int, pooling: Pooling) -> SentenceEncoder:
    """Loads an encoder and its tokenizer, without a head and a pooler.

    Raises:
        DataError: if the model cannot be found or read.
        TeacherError: if it is not an encoder, lacks weights, or does not fit its tokenizer or the pooling.
    """
    console.note(f"loading encoder {name}")
    config = load_config(name, revision)
    if getattr(config, "is_encoder_decoder", False):
        raise TeacherError(
            f"teacher {name}: has an encoder and a decoder, but vectors of sentences need an encoder such as BERT"
        )
    tokens = load_tokenizer(name, revision, config, max_seq_length)
    if pooling == "cls" and not tokens.frame[0]:
        raise TeacherError(
            f"teacher {name}: has no special token before a sentence, which --pooling cls needs. Use --pooling mean"
        )
    model, missing = load_weights(AutoModel, name, revision)
    require_encoder(name, missing)
    # For a folder without a pooler transformers makes a random one, which would change the weights' hash at every load.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return SentenceEncoder(name, revision, model, tokens, pooling)


def stated_pooling(name: str, revision: str | None) -> Pooling | None:
    """Returns the pooling that sentence-transformers saved with a model. None if it is missing or not supported."""
    require_model_folder(name)
    with reported(f"teacher {name}: cannot be read", DataError):
        file = cached_file(name, POOLING_FILE, revision=revision, _raise_exceptions_for_missing_entries=False)
    if file is None:
        return None
    with reported(f"{file}: cannot be read", DataError):
        modes = parse_json(Path(file).read_bytes())
        poolings: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
        return next((pooling for mode, pooling in poolings.items() if modes.get(mode) is True), None)


def sentence_vectors(
    encoder: SentenceEncoder, ids: Ragged, max_tokens: int, advance: Callable[[int], None] = lambda rows: None
) -> Floats:
    """Returns the pooled last states of sentences, in batches of similar lengths. Call it inside `inference_mode`.

    Returns:
        vectors_NH: float32, the mean over all tokens of the encoder, including special ones, or the first state.

    Raises:
        TeacherError: if a number is not finite, or a single sentence does not fit into memory.
    """
    vectors_NH = np.empty((len(ids), encoder.width), dtype=np.float32)

    def run(batch: list[int]) -> None:
        inputs = collate(encoder, framed(encoder, ids.take(batch)))
        # The mean over many tokens is computed in float32, because 16-bit sums would lose digits.
        states_BLH = encoder.model(**inputs).last_hidden_state.float()
        pooled_BH = states_BLH[:, 0]
        if encoder.pooling == "mean":
            weights_BL1 = inputs["attention_mask"].float().unsqueeze(2)
            pooled_BH = (states_BLH * weights_BL1).sum(dim=1) / weights_BL1.sum(dim=1)
        vectors_NH[batch] = pooled_BH.cpu().numpy()
        advance(len(batch))

    run_batches((ids.lengths + encoder.tokens.num_special).tolist(), max_tokens, run)
    if not np.isfinite(vectors_NH).all():
        raise TeacherError(
            f"teacher {encoder.name}: outputs NaN or Inf. fp16 overflows with some models. Try --precision bf16 or fp32"
        )
    return vectors_NH


def token_vectors(
    model: LoadedModel, vocabulary_size: int, max_tokens: int, advance: Callable[[int], None] = lambda rows: None
) -> Floats:
    """Returns a vector of each vocabulary entry, encoded alone between the special tokens of a single sentence.

    Call it inside `inference_mode`. A teacher's vector is the entry's state below the first layer. A
    `SentenceEncoder`'s vector is that of a sentence with only this entry.

    Returns:
        vector_VW: float32, by id, each within the range of float16.

    Raises:
        TeacherError: if a number is not finite in float16, or a single entry does not fit into memory.
    """
    alone = Ragged(np.arange(vocabulary_size), np.arange(vocabulary_size + 1))
    if isinstance(model, SentenceEncoder):
        vector_VW = sentence_vectors(model, alone, max_tokens, advance)
    else:
        vector_VW = _embeddings(model, alone, max_tokens, advance)
    # NaN fails the comparison as well, so one check finds NaN, Inf and numbers too large for float16.
    finite_V = (np.abs(vector_VW) <= np.finfo(np.float16).max).all(axis=1)
    if not finite_V.all():
        number = int(np.flatnonzero(~finite_V)[0])
        raise TeacherError(
            f"teacher {model.name}: its vector of token {model.tokenizer.id_to_token(number)!r} is NaN or beyond "
            "float16. Try --precision bf16 or fp32, or leave these vectors out with --no-token-vectors."
        )
    return vector_VW


def has_states(teacher: LoadedModel) -> bool:
    """Whether the model's encoder returns hidden states. Call this inside `inference_mode`."""
    is_head = teacher.model.base_model is not teacher.model
    return is_head and isinstance(getattr(_hidden_states(teacher, Ragged.of([[0]])), "hidden_states", None), tuple)


def _embeddings(teacher: LoadedModel, alone: Ragged, max_tokens: int, advance: Callable[[int], None]) -> Floats:
    outputs: list[tuple[list[int], torch.Tensor]] = []

    def run(batch: list[int]) -> None:
        state_BLW = _hidden_states(teacher, alone.take(batch)).hidden_states[EMBEDDINGS]
        outputs.append((batch, state_BLW[:, len(teacher.tokens.frame[0])].float()))
        advance(len(batch))

    run_batches([1 + teacher.tokens.num_special] * len(alone), max_tokens, run)
    # Batches are not in the order of the vocabulary, and a batch that was split after running out of memory comes last.
    order = np.argsort([number for batch, _ in outputs for number in batch])
    vector_VW: Floats = torch.cat([part for _, part in outputs]).cpu().numpy()[order]
    return vector_VW


def _hidden_states(teacher: LoadedModel, ids: Ragged) -> Any:
    """Returns the output of the encoder below the head for inputs of the same length, with all hidden states."""
    return teacher.model.base_model(**collate(teacher, framed(teacher, ids)), output_hidden_states=True)
