"""Splits documents into sequences of tokens: sentences, or full blocks.

Shapes: N sequences.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from sentencex import segment

from pipeline.arrays import Ints, Ragged
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import frame_ids
from teacher.settings import Packing

Document = tuple[int, str]  # number and text


@dataclass(frozen=True)
class Sequences:
    """Sequences of tokens, without special tokens.

    Attributes:
        source_row_N: the document in which a sequence begins.
        piece_N: its number among the sequences that begin there.
        ids: its tokens.
    """

    source_row_N: Ints
    piece_N: Ints
    ids: Ragged

    def __len__(self) -> int:
        return len(self.source_row_N)

    def take(self, rows: Ints) -> "Sequences":
        """Returns the sequences with these numbers, in the same order."""
        return Sequences(self.source_row_N[rows], self.piece_N[rows], self.ids.take(rows))


Piece = tuple[int, int, list[int]]  # source row, piece, ids


def read_sequences(
    documents: Iterable[list[Document]],
    reader: TextReader,
    packing: Packing,
    language: str,
    min_tokens: int,
    max_tokens: int,
) -> Iterator[Sequences]:
    """Yields the sequences of documents in batches. They do not depend on the batches of documents.

    Sentences are truncated to ``max_tokens``. Blocks cross the ends of documents, which a separator marks. Sequences
    shorter than ``min_tokens`` are left out.

    Args:
        documents: batches of documents, in order.
        reader: converts text to ids.
        packing: ``sentences`` or ``blocks``.
        language: ISO 639-1 code.
        min_tokens: fewest tokens.
        max_tokens: most tokens.
    """
    cut = _sentences(documents, reader, language, max_tokens)
    for batch in cut if packing == "sentences" else _blocks(documents, reader, max_tokens):
        long_enough = [piece for piece in batch if len(piece[2]) >= min_tokens]
        if long_enough:
            rows, numbers, ids = zip(*long_enough, strict=True)
            yield Sequences(np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.int64), Ragged.of(ids))


def _sentences(
    documents: Iterable[list[Document]], reader: TextReader, language: str, max_tokens: int
) -> Iterator[list[Piece]]:
    key = (-1, 0)
    for batch in documents:
        sentences = [(row, sentence) for row, text in batch for sentence in segment(language, text)]
        pieces: list[Piece] = []
        (whole,) = reader.read([text for _, text in sentences], None, None)
        for (row, _), ids in zip(sentences, whole.lists(), strict=True):
            for start in range(0, len(ids), max_tokens):
                key = (row, key[1] + 1 if key[0] == row else 0)
                pieces.append((*key, ids[start : start + max_tokens]))
        yield pieces


def _blocks(documents: Iterable[list[Document]], reader: TextReader, max_tokens: int) -> Iterator[list[Piece]]:
    before, after = frame_ids(reader.tokenizer)
    # BERT has [SEP], RoBERTa </s>: the last special token of a sequence serves as the separator of documents.
    separator = (before + after)[-1:]
    block: list[int] = []
    key = (-1, 0)
    for batch in documents:
        full: list[Piece] = []
        (whole,) = reader.read([text for _, text in batch], None, None)
        for (row, _), ids in zip(batch, whole.lists(), strict=True):
            # An empty document must not leave two separators in a row.
            rest = ids + separator if ids else []
            while rest:
                if not block:
                    key = (row, key[1] + 1 if key[0] == row else 0)
                room = max_tokens - len(block)
                block, rest = block + rest[:room], rest[room:]
                if len(block) == max_tokens:
                    full.append((*key, block))
                    block = []
        yield full
    if block:
        yield [(*key, block)]
