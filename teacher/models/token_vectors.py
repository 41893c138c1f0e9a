"""What an encoder says of each vocabulary entry alone. Shapes: B batch, L tokens, V vocabulary, W width.

Of a teacher its embeddings, not its last layer: fine-tuning makes that say what the task asks for, and forget the rest.
STS-B students of a fine-tuned MiniLM that start from its embeddings reach 80.9, from the layers above 79.2 to 73.9,
falling. Of an encoder of sentences that was not fine-tuned its last states are worth more than both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pipeline.arrays import Floats, Ragged
from pipeline.device import to_device
from pipeline.errors import TeacherError
from pipeline.sets.signals.token_vectors import EMBEDDINGS
from pipeline.text.tokenizer import Tokenized
from teacher.models.batches import collate, run_batches
from teacher.models.encoder import SentenceEncoder, sentence_vectors
from teacher.models.loaded import LoadedModel


def token_vectors(
    speaker: LoadedModel, vocabulary_size: int, max_tokens: int, advance: Callable[[int], None] = lambda rows: None
) -> Floats:
    """What a model says of each entry, between the special tokens of a single sentence.

    Args:
        speaker: on its device; call this inside `inference_mode`. Of a teacher it is the entry's state below the first
            layer, of a `SentenceEncoder` what it makes of a sentence with this entry alone.
        vocabulary_size: V.
        max_tokens: most tokens per batch.
        advance: called with the number of entries after each batch.

    Returns:
        vector_VW: float32, by id, each within the range of float16.

    Raises:
        TeacherError: if a number is not finite in float16, or a single entry does not fit the memory.
    """
    if isinstance(speaker, SentenceEncoder):
        alone = Ragged(np.arange(vocabulary_size), np.arange(vocabulary_size + 1))
        vector_VW = sentence_vectors(speaker, alone, max_tokens, advance)
    else:
        vector_VW = _embeddings(speaker, vocabulary_size, max_tokens, advance)
    finite_V = (np.abs(vector_VW) <= np.finfo(np.float16).max).all(axis=1)
    if not finite_V.all():
        number = int(np.flatnonzero(~finite_V)[0])
        raise TeacherError(
            f"teacher {speaker.name}: its vector of token {speaker.tokenizer.id_to_token(number)!r} is NaN or beyond "
            "float16; try --precision bf16 or fp32, or leave these vectors out with --no-token-vectors"
        )
    return vector_VW


def has_states(teacher: LoadedModel) -> bool:
    """Whether the model's encoder can be asked for hidden states; call this inside `inference_mode`."""
    is_head = teacher.model.base_model is not teacher.model
    return is_head and isinstance(getattr(_ask(teacher, [_alone(teacher, 0)]), "hidden_states", None), tuple)


def _embeddings(teacher: LoadedModel, vocabulary_size: int, max_tokens: int, advance: Callable[[int], None]) -> Floats:
    outputs: list[tuple[list[int], torch.Tensor]] = []

    def run(batch: list[int]) -> None:
        state_BLW = _ask(teacher, [_alone(teacher, number) for number in batch]).hidden_states[EMBEDDINGS]
        outputs.append((batch, state_BLW[:, len(teacher.tokens.frame[0])].float()))
        advance(len(batch))

    run_batches([1 + teacher.tokens.num_special] * vocabulary_size, max_tokens, run)
    order = np.argsort([number for batch, _ in outputs for number in batch])
    vector_VW: Floats = torch.cat([part for _, part in outputs]).cpu().numpy()[order]
    return vector_VW


def _alone(teacher: LoadedModel, number: int) -> Tokenized:
    """A vocabulary entry between the special tokens of a single sentence."""
    before, after = teacher.tokens.frame
    ids = [*before, number, *after]
    return Tokenized(ids, [0] * len(ids), [number], [])


def _ask(teacher: LoadedModel, inputs: list[Tokenized]) -> Any:
    """What the encoder below the head gives for inputs of the same length."""
    batch = {name: to_device(values, teacher.model.device) for name, values in collate(teacher, inputs).items()}
    return teacher.model.base_model(**batch, output_hidden_states=True)
