"""Splits texts that are longer than a teacher's input into windows, as Hugging Face does with ``doc_stride``.

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
    """How inputs are split into windows.

    Attributes:
        size: maximum number of tokens of a window, including special tokens.
        stride: tokens of a text that a window shares with the previous one.
        frame: the special tokens around sentences.
    """

    size: int
    stride: int
    frame: list[Piece]

    @classmethod
    def of(cls, tokenizer: Tokenizer, is_pair: bool, size: int, stride: int) -> "Windows":
        """Returns the windows of a tokenizer's inputs.

        Raises:
            ConfigError: if windows could overlap completely, or the tokenizer has no special tokens at the ends of
                sentences.
        """
        frame = frame_of(tokenizer, is_pair)
        # A window is a new input, and without special tokens nothing marks where its sentences end.
        if frame is None:
            raise ConfigError("--doc-stride: this tokenizer has no special tokens, which windows need")
        check_stride(is_pair, tokenizer.num_special_tokens_to_add(is_pair), size, stride)
        return cls(size, stride, frame)

    def split(self, row: Tokenized) -> list[Tokenized]:
        """Returns the windows of an input. A short input is a window itself.

        The longer sentence of a pair is split into windows. Each is joined with the shorter one, which is truncated to
        half a window.
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
    """Raises ConfigError if windows could overlap completely."""
    least = (size - specials) // (1 + is_pair)
    if stride >= least:
        beside = " next to the shorter sentence of a pair" if is_pair else ""
        raise ConfigError(
            f"--doc-stride: {stride}, but a window of {size} may have only {least} tokens of a text{beside}"
        )


def window_lengths(long_N: Ints, short_N: Ints, specials: int, size: int, stride: int) -> Ints:
    """Returns the numbers of tokens of the windows of inputs, one after the other.

    Args:
        long_N: tokens of the longer or only sentence of each input.
        short_N: tokens of the other sentence, or 0.
        specials: number of special tokens of an input.
        size: see `Windows`.
        stride: see `Windows`.
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
    """Returns which inputs lose tokens [N].

    With windows, these are only pairs whose sentences both exceed half a window.

    Args:
        lengths: tokens of the single sentences, or of the first and of the second sentences.
        room: maximum number of tokens that are read at once, without special ones.
        by_windows: whether longer inputs are read by windows.
    """
    is_truncated_N: npt.NDArray[np.bool_] = np.sum(lengths, axis=0) > room
    if by_windows:
        # Windows cover the longer sentence, so tokens are lost only if the shorter one exceeds half a window.
        is_truncated_N &= np.min(lengths, axis=0) > room // 2 if len(lengths) == 2 else False
    return is_truncated_N
