"""Texts that are longer than a teacher reads, as windows of it: cut as Hugging Face cuts them by ``doc_stride``.

Shapes: N inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.arrays import Ints
from pipeline.errors import ConfigError
from pipeline.text.tokenizer import Piece, Tokenized, frame_of, framed


@dataclass(frozen=True)
class Windows:
    """How inputs are cut into windows.

    Attributes:
        size: most tokens of a window, special tokens counted in.
        stride: tokens of a text that a window has in common with the one before.
        frame: what stands around sentences.
    """

    size: int
    stride: int
    frame: list[Piece]

    @classmethod
    def of(cls, tokenizer: Tokenizer, is_pair: bool, size: int, stride: int) -> "Windows":
        """The windows of a tokenizer's inputs.

        Raises:
            ConfigError: if windows could overlap by all they hold, or the tokenizer marks no ends of sentences.
        """
        frame = frame_of(tokenizer, is_pair)
        # A window is a new input, and without special tokens nothing marks where its sentences end.
        if frame is None:
            raise ConfigError("--doc-stride: this tokenizer puts no special tokens around what would be a window")
        check_stride(is_pair, tokenizer.num_special_tokens_to_add(is_pair), size, stride)
        return cls(size, stride, frame)

    def split(self, row: Tokenized) -> list[Tokenized]:
        """The windows of an input; one that is not longer than a window is the only one.

        Of a pair the longer sentence is cut into windows, each beside the shorter one, of which half a window is read.
        """
        if len(row.ids) <= self.size:
            return [row]
        sentences = [row.ids1, row.ids2]
        room = self.size - len(row.ids) + len(row.ids1) + len(row.ids2)
        # Hugging Face cuts only one sentence of a pair into windows, usually the long context of a short question.
        longer = int(len(row.ids2) >= len(row.ids1))
        sentences[1 - longer] = sentences[1 - longer][: room // 2]
        width, ids = room - len(sentences[1 - longer]), sentences[longer]
        windows = []
        # Stopping one stride before the end avoids a last window that only repeats tokens.
        for start in range(0, len(ids) - self.stride, width - self.stride):
            sentences[longer] = ids[start : start + width]
            windows.append(framed(self.frame, tuple(sentences)))
        return windows


def check_stride(is_pair: bool, specials: int, size: int, stride: int) -> None:
    """Raises ConfigError if windows might overlap by all that they hold of a text."""
    least = (size - specials) // (1 + is_pair)
    if stride >= least:
        beside = " beside the shorter one of a pair" if is_pair else ""
        raise ConfigError(f"--doc-stride: {stride}, but a window of {size} may hold {least} tokens of a text{beside}")


def window_lengths(long_N: Ints, short_N: Ints, specials: int, size: int, stride: int) -> Ints:
    """Tokens of the windows of inputs, one after the other.

    Args:
        long_N: tokens of the longer sentence of each, or of the only one.
        short_N: tokens of the other one, or 0.
        specials: number of special tokens of an input.
        size: as of `Windows`.
        stride: as of `Windows`.
    """
    room = size - specials
    fits_N = long_N + short_N <= room
    short_N = np.where(fits_N, short_N, np.minimum(short_N, room // 2))
    step_N = room - short_N - stride
    # This is the number of steps of the loop in `split`, rounded up.
    count_N = np.where(fits_N, 1, -(-(long_N - stride) // step_N))
    last_N = long_N - (count_N - 1) * step_N + short_N + specials
    lengths = np.full(count_N.sum(), size)
    lengths[count_N.cumsum() - 1] = last_N
    return lengths


def are_truncated(lengths: Sequence[Ints], room: int, by_windows: bool) -> npt.NDArray[np.bool_]:
    """Returns which inputs lose tokens [N]; with windows, only pairs whose sentences both exceed half a window.

    Args:
        lengths: tokens of the single sentences, or of the first and of the second ones.
        room: most tokens that are read at once, without special ones.
        by_windows: whether longer inputs are read by windows.
    """
    is_truncated_N: npt.NDArray[np.bool_] = np.sum(lengths, axis=0) > room
    if by_windows:
        # Windows cover the longer sentence, so tokens are lost only if the shorter one exceeds half a window.
        is_truncated_N &= np.min(lengths, axis=0) > room // 2 if len(lengths) == 2 else False
    return is_truncated_N
