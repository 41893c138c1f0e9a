"""``attention``: a teacher's attention scores before softmax and mask. Shapes: A heads, L tokens."""

from typing import ClassVar

import numpy as np

from pipeline.arrays import Bools, Floats, Ints
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals.blocks import Blocks


class Attention(Blocks):
    """The product of queries and keys, divided by the root of a head's width: of each head a row per query."""

    name: ClassVar[LayersName] = "attention"
    title: ClassVar[str] = "attention of layers"
    meaning: ClassVar[str] = "Attention scores before softmax and mask, head after head, query after query."
    numbers: ClassVar[str] = "heads · length · length numbers"

    def kept(self, length: int) -> Bools:
        """All."""
        return np.ones((length, length), dtype=bool)

    def whole(self, block_ALL: Floats) -> Floats:
        """The squares themselves."""
        return block_ALL

    def num_kept(self, length_R: Ints) -> Ints:
        """L², of each row."""
        return length_R**2
