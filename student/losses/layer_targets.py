"""The outputs of the teacher's layers for training rows, aligned with the student's tokens.

Shapes: N training rows, B rows of a batch, T tokens of the student's input end to end, H the teacher's width, A heads,
L tokens of the longest row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.sets.layers import LayerStore
from student.data import Examples
from student.model.architecture import SpecialIds


@dataclass(frozen=True)
class Frame:
    """The number of special tokens that the teacher reads before, between and after the sentences of a row."""

    before: int
    between: int
    after: int

    @classmethod
    def of(cls, special_ids: SpecialIds, is_pair: bool) -> "Frame":
        """Returns the frame of a tokenizer. A single sentence has no tokens between."""
        # BERT reads `[CLS] a [SEP] b [SEP]`, while a matrix student reads a and b alone, so positions differ.
        before, between, after = (len(ids) for ids in special_ids)
        return cls(before, between if is_pair else 0, after)

    def lengths(self, examples: Examples) -> Ints:
        """Returns the number of the teacher's tokens for each row [N]."""
        parts = sum(part.lengths for part in examples.sequences)
        return np.asarray(parts + self.before + self.between + self.after)

    def slices(self, lengths: tuple[int, ...]) -> Iterator[slice]:
        """Yields the slice of each sentence's tokens within the tokens of a row."""
        start = self.before
        for length in lengths:
            yield slice(start, start + length)
            start += length + self.between


class LayerTargets:
    """A signal's stored layers for a student's training rows.

    Args:
        store: the layers.
        examples: the rows in the student's form.
        lengths_N: required number of the teacher's tokens for a row to be compared. Default: any.
        frame: the teacher's special tokens around sentences, or None for a student that reads them as well.

    Attributes:
        is_known_N: which rows have the signal.
    """

    def __init__(
        self, store: LayerStore, examples: Examples, lengths_N: Ints | None = None, frame: Frame | None = None
    ) -> None:
        self.store, self._frame = store, frame
        # Rows are joined by key and never by position, because a signal may exist for a part of the rows only.
        self._place_N = store.places(*examples.key_N2.T)
        self._lengths = [part.lengths for part in examples.sequences]
        is_there_N = self._place_N >= 0
        self.is_known_N = is_there_N.copy()
        if lengths_N is not None:
            # Different lengths mean different tokens, for example after pruning or truncation, and tokens could not be
            # aligned.
            self.is_known_N[is_there_N] = store.length_R[self._place_N[is_there_N]] == lengths_N[is_there_N]
        others = int(np.count_nonzero(is_there_N & ~self.is_known_N))
        if others:
            console.warn(f"{store.signal.name}: {others:,} rows with other tokens for the student are left out")

    @property
    def width(self) -> int:
        """H, or A for squares of scores."""
        # One stored row gives the width, so the record need not repeat it for every signal.
        (first,) = self.store.rows(self.store.signal.layers[0], self._place_N[self.is_known_N][:1])
        return int(first.shape[0] if first.ndim == 3 else first.shape[1])

    def first(self, layer: int, rows: Ints) -> Tensor:
        """Returns the state of each row's first token, float32 [B, H]."""
        return torch.from_numpy(np.concatenate(self.store.rows(layer, self._place_N[rows], most_tokens=1)))

    def states(self, layer: int, rows: Ints) -> Tensor:
        """Returns the states of the student's tokens, float32 [T, H]. Second sentences come last."""
        states = self._rows(layer, rows)
        if self._frame is None:
            return torch.from_numpy(np.concatenate(states))
        # The student encodes all first sentences before all second ones, so the targets follow that order.
        parts: list[list[Floats]] = [[] for _ in self._lengths]
        for row, row_states in zip(rows, states, strict=True):
            lengths = tuple(int(length_N[row]) for length_N in self._lengths)
            for part, place in zip(parts, self._frame.slices(lengths), strict=True):
                part.append(row_states[place])
        return torch.from_numpy(np.concatenate([rows for part in parts for rows in part]))

    def squares(self, layer: int, rows: Ints, longest: int) -> Tensor:
        """Returns each head's number for each pair of tokens, float32 [B, A, L, L], 0 beyond a row's end."""
        squares = self._rows(layer, rows)
        padded = np.zeros((len(squares), len(squares[0]), longest, longest), dtype=np.float32)
        for row, square in zip(padded, squares, strict=True):
            length = square.shape[1]
            row[:, :length, :length] = square
        return torch.from_numpy(padded)

    def _rows(self, layer: int, rows: Ints) -> list[Floats]:
        return self.store.rows(layer, self._place_N[rows])
