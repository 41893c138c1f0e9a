"""A teacher's embedding of each vocabulary entry. Shapes: B batch, L tokens, V vocabulary, W width.

Of its embeddings, not of its last layer: fine-tuning makes that say what the task asks for, and forget the rest. STS-B
students of a fine-tuned MiniLM that start from its embeddings reach 80.9, from the layers above 79.2 to 73.9, falling.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pipeline.arrays import Floats
from pipeline.device import to_device
from pipeline.errors import TeacherError
from pipeline.text.tokenizer import Tokenized
from teacher.inference.batches import collate, run_batches
from teacher.inference.loaded import LoadedModel

LAYER = 0  # the embeddings, normalised and with their position


def token_vectors(
    teacher: LoadedModel, vocabulary_size: int, max_tokens: int, advance: Callable[[int], None] = lambda rows: None
) -> Floats:
    """Each entry's hidden state below the first layer, between the special tokens of a single sentence.

    Args:
        teacher: the teacher, on its device; call this inside `inference_mode`.
        vocabulary_size: V.
        max_tokens: most tokens per batch.
        advance: called with the number of entries after each batch.

    Returns:
        vector_VW: float32, by id, each within the range of float16.

    Raises:
        TeacherError: if a number is not finite in float16, or a single entry does not fit the memory.
    """
    outputs: list[tuple[list[int], torch.Tensor]] = []

    def run(batch: list[int]) -> None:
        state_BLW = _ask(teacher, [_alone(teacher, number) for number in batch]).hidden_states[LAYER]
        outputs.append((batch, state_BLW[:, len(teacher.tokens.frame[0])].float()))
        advance(len(batch))

    run_batches([1 + teacher.tokens.num_special] * vocabulary_size, max_tokens, run)
    order = np.argsort([number for batch, _ in outputs for number in batch])
    vector_VW: Floats = torch.cat([part for _, part in outputs]).cpu().numpy()[order]
    finite_V = (np.abs(vector_VW) <= np.finfo(np.float16).max).all(axis=1)
    if not finite_V.all():
        number = int(np.flatnonzero(~finite_V)[0])
        raise TeacherError(
            f"teacher {teacher.name}: its vector of token {teacher.tokenizer.id_to_token(number)!r} is NaN or beyond "
            "float16; try --precision bf16 or fp32, or leave these vectors out with --no-token-vectors"
        )
    return vector_VW


def has_states(teacher: LoadedModel) -> bool:
    """Whether the model's encoder can be asked for hidden states; call this inside `inference_mode`."""
    is_head = teacher.model.base_model is not teacher.model
    return is_head and isinstance(getattr(_ask(teacher, [_alone(teacher, 0)]), "hidden_states", None), tuple)


def _alone(teacher: LoadedModel, number: int) -> Tokenized:
    """A vocabulary entry between the special tokens of a single sentence."""
    before, after = teacher.tokens.frame
    ids = [*before, number, *after]
    return Tokenized(ids, [0] * len(ids), [number], [])


def _ask(teacher: LoadedModel, inputs: list[Tokenized]) -> Any:
    """What the encoder below the head gives for inputs of the same length."""
    batch = {name: to_device(values, teacher.model.device) for name, values in collate(teacher, inputs).items()}
    return teacher.model.base_model(**batch, output_hidden_states=True)
