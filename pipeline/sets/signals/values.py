"""``values``: how alike the values of a teacher's attention are, token by token. Shapes: A heads, L tokens."""

from typing import ClassVar

import numpy as np

from pipeline.arrays import Bools, Floats, Ints
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals.blocks import Blocks


class Values(Blocks):
    """The products of values with each other, divided by the root of a head's width: half of each symmetric square.

    With 128 tokens that is as large as the values themselves, with fewer smaller.
    """

    name: ClassVar[LayersName] = "values"
    title: ClassVar[str] = "value relations of layers"
    meaning: ClassVar[str] = (
        "Products of the attention's values before softmax, head after head, token after token: the upper half of a "
        "symmetric square, the diagonal included."
    )
    numbers: ClassVar[str] = "heads · length · (length + 1) / 2 numbers"

    def kept(self, length: int) -> Bools:
        """The diagonal, and what is above it."""
        return np.triu(np.ones((length, length), dtype=bool))

    def whole(self, block_ALL: Floats) -> Floats:
        """The squares, symmetric."""
        return block_ALL + np.triu(block_ALL, 1).swapaxes(1, 2)

    def num_kept(self, length_R: Ints) -> Ints:
        """L · (L + 1) / 2, of each row."""
        return length_R * (length_R + 1) // 2
