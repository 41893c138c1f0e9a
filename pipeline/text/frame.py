"""What a tokenizer puts around one sentence or two: special tokens, in which order, of which type."""

import itertools
from dataclasses import dataclass

from tokenizers import Tokenizer

from pipeline.text.tokenizer import Tokenized, example


@dataclass(frozen=True)
class Piece:
    """Special tokens that stand in every input, or one of its sentences."""

    sentence: int | None
    ids: list[int]
    type_id: int


def frame_of(tokenizer: Tokenizer, is_pair: bool) -> list[Piece] | None:
    """What an input consists of, as an example shows it; None if that has not all sentences, or no special tokens.

    Where nothing is put around sentences, an empty one changes the type of the other.
    """
    encoding = example(tokenizer, is_pair)
    tokens = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
    pieces = [
        Piece(sentence, [id_ for *_, id_ in group], type_id)
        for (sentence, type_id), group in itertools.groupby(tokens, key=lambda token: token[:2])
    ]
    sentences = sorted(piece.sentence for piece in pieces if piece.sentence is not None)
    return pieces if sentences == [0, 1][: 1 + is_pair] and len(pieces) > len(sentences) else None


def framed(frame: list[Piece], sentences: tuple[list[int], ...]) -> Tokenized:
    """An input made of the ids of its one sentence or two."""
    ids: list[int] = []
    type_ids: list[int] = []
    for piece in frame:
        part = piece.ids if piece.sentence is None else sentences[piece.sentence]
        ids += part
        type_ids += [piece.type_id] * len(part)
    return Tokenized(ids, type_ids, sentences[0], sentences[1] if len(sentences) == 2 else [])
