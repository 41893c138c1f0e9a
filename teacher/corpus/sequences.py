"""Splits documents into sequences of tokens (sentences, or full blocks), and masks their tokens.

Masking is a pure function of seed, sequence and copy: random numbers are hashes of their purpose and key, not of a
generator's state. Any part of a corpus can therefore be masked again by itself, by any number of processes, in any
order.

Shapes: N sequences, T tokens of all of them, R masked copies, P masked positions of all of them, V vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sentencex import segment

from pipeline.arrays import Ints, Ragged, hashed, stacked, uniform
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import frame_ids
from teacher.settings import Packing

Document = tuple[int, str]  # number and text
Piece = tuple[int, int, list[int]]  # source row, piece, ids
CHOOSE, REPLACE, RANDOM_TOKEN = range(3)  # part of the hashed key, by use of the random number
# Shares of the chosen tokens. The others stay unchanged (Devlin et al. 2019, A.1).
SHARE_MASKED, SHARE_RANDOM = 0.8, 0.1
FREQUENCY_POWER = -0.7  # as in DistilBERT and the CMOW paper's code, after Lample and Conneau 2019


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


@dataclass(frozen=True)
class MaskingPlan:
    """The settings of masking.

    Attributes:
        seed: the seed of all random numbers.
        probability: share of a sequence's tokens that a copy masks, at least one.
        num_copies: copies of each sequence. Their positions are disjoint until every one has been masked once.
        mask_id: the mask token.
        weight_V: the relative weight of a token in the selection, or 0 for special tokens.
    """

    seed: int
    probability: float
    num_copies: int
    mask_id: int
    weight_V: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Masked:
    """Masked copies of sequences, in the order of their keys.

    Attributes:
        sequence_R: the number of the sequence.
        copy_R: the number of the copy.
        ids: the masked ids.
        positions: the positions of the chosen tokens, ascending.
        targets: the original tokens.
    """

    sequence_R: Ints
    copy_R: Ints
    ids: Ragged
    positions: Ragged
    targets: Ragged

    def take(self, rows: Ints) -> "Masked":
        """Returns the copies with these numbers, in the same order."""
        lists = (part.take(rows) for part in (self.ids, self.positions, self.targets))
        return Masked(self.sequence_R[rows], self.copy_R[rows], *lists)

    @classmethod
    def joined(cls, parts: list["Masked"]) -> "Masked":
        """Returns the copies of all parts, one part after the other. The numbers of sequences do not change."""
        return cls(
            np.concatenate([part.sequence_R for part in parts]),
            np.concatenate([part.copy_R for part in parts]),
            stacked([part.ids for part in parts]),
            stacked([part.positions for part in parts]),
            stacked([part.targets for part in parts]),
        )


def uniform_weights(vocabulary_size: int, special_ids: list[int]) -> npt.NDArray[np.float64]:
    """Returns weights [V] of BERT's plan: 1 for every token, 0 for special ones."""
    weight_V = np.ones(vocabulary_size)
    weight_V[special_ids] = 0
    return weight_V


def frequency_weights(count_V: Ints, special_ids: list[int]) -> npt.NDArray[np.float64]:
    """Returns weights [V] by rarity, count^-0.7, and 0 for special tokens. A count of 0 is replaced by 1."""
    # Rare tokens are masked more often than their share, or the student would mostly see frequent ones.
    weight_V = np.maximum(count_V, 1).astype(np.float64) ** FREQUENCY_POWER
    weight_V[special_ids] = 0
    return weight_V


def mask(sequences: Sequences, plan: MaskingPlan, first_copy: int = 0) -> Masked:
    """Masks copies ``first_copy`` and the ``num_copies - 1`` after it of every sequence that has a token to mask."""
    lengths_N = sequences.ids.lengths
    maskable_T = plan.weight_V[sequences.ids.flat] > 0
    sequence_T = np.repeat(np.arange(len(sequences)), lengths_N)
    num_maskable_N = np.bincount(sequence_T, weights=maskable_T, minlength=len(sequences)).astype(np.int64)
    rows = np.flatnonzero(num_maskable_N)
    copies = [_mask_copy(sequences.take(rows), plan, first_copy + k) for k in range(plan.num_copies)]
    sequence_R = np.tile(rows, plan.num_copies)
    copy_R = np.repeat(np.arange(plan.num_copies) + first_copy, len(rows))
    # Sorted by key, as verification expects, and the copies of a sequence compress well as neighbours.
    order = np.lexsort((copy_R, sequence_R))
    ids, positions, targets = (stacked(parts).take(order) for parts in zip(*copies, strict=True))
    return Masked(sequence_R[order], copy_R[order], ids, positions, targets)


def _mask_copy(sequences: Sequences, plan: MaskingPlan, copy: int) -> tuple[Ragged, Ragged, Ragged]:
    """Returns ids, positions and targets of one copy of sequences that all have a token to mask."""
    ids_T, offsets, lengths_N = sequences.ids.flat, sequences.ids.offsets, sequences.ids.lengths
    sequence_T = np.repeat(np.arange(len(sequences)), lengths_N)
    position_T = np.arange(len(ids_T)) - offsets[sequence_T]
    weight_T = plan.weight_V[ids_T]
    num_maskable_N = np.bincount(sequence_T, weights=weight_T > 0, minlength=len(sequences)).astype(np.int64)
    num_masked_N = np.maximum(1, np.rint(plan.probability * num_maskable_N)).astype(np.int64)
    # In each round every position is masked once: the copies of a round take slices of one random order.
    copies_N = -(-num_maskable_N // num_masked_N)
    round_N, slice_N = np.divmod(copy, copies_N)
    keys_T = [sequences.source_row_N[sequence_T], sequences.piece_N[sequence_T]]
    random_T = uniform(hashed(plan.seed, CHOOSE, *keys_T, round_N[sequence_T], position_T))
    # By exponential waiting times, each prefix is a weighted sample without replacement (Efraimidis and Spirakis).
    waiting_T = np.where(weight_T > 0, -np.log(random_T) / np.maximum(weight_T, 1e-300), np.inf)
    order_T = np.lexsort((waiting_T, sequence_T))
    rank_T = np.empty_like(position_T)
    rank_T[order_T] = position_T
    low_N = slice_N * num_masked_N
    high_N = np.minimum(low_N + num_masked_N, num_maskable_N)
    chosen_T = (rank_T >= low_N[sequence_T]) & (rank_T < high_N[sequence_T])
    chosen_P = np.flatnonzero(chosen_T)
    counts_N = np.bincount(sequence_T[chosen_P], minlength=len(sequences))
    chosen_offsets = np.concatenate([[0], np.cumsum(counts_N)])
    masked_T = ids_T.copy()
    row_P, piece_P = (part[chosen_P] for part in keys_T)
    masked_T[chosen_P] = _replacements(plan, ids_T[chosen_P], row_P, piece_P, copy, position_T[chosen_P])
    return (
        Ragged(masked_T, offsets),
        Ragged(position_T[chosen_P], chosen_offsets),
        Ragged(ids_T[chosen_P], chosen_offsets),
    )


def _replacements(plan: MaskingPlan, ids_P: Ints, *key: Ints | int) -> Ints:
    """Returns the ids at the chosen positions [P]: 80 % the mask, 10 % any normal token, 10 % the token itself."""
    ordinary = np.flatnonzero(plan.weight_V)
    random_P = uniform(hashed(plan.seed, REPLACE, *key))
    token_P = ordinary[(uniform(hashed(plan.seed, RANDOM_TOKEN, *key)) * len(ordinary)).astype(np.int64)]
    kept_P = np.where(random_P < SHARE_MASKED + SHARE_RANDOM, token_P, ids_P)
    return np.where(random_P < SHARE_MASKED, plan.mask_id, kept_P)
