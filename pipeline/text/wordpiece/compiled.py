"""Finding, loading and calling the compiled code. The sources are in ``cpp``, built by ``setup.py``.

Shapes: N sentences, S = N + 1 starts, T bytes of all sentences end to end.
"""

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipeline.arrays import Ints
from pipeline.text.wordpiece.characters import Characters

Int32s = npt.NDArray[np.int32]
BYTES_PER_THREAD = 2**15  # less is read before a thread has started
NUMBER, ADDRESS = ctypes.c_int64, ctypes.c_void_p


class _Strings(ctypes.Structure):
    """Strings end to end, and where each starts."""

    _fields_ = (("bytes", ctypes.c_char_p), ("starts", ADDRESS), ("count", NUMBER))

    @classmethod
    def of(cls, text: bytes, starts_S: Ints) -> "_Strings":
        """Strings for C, of arrays that must be kept as long as they are used."""
        return cls(text, starts_S.ctypes.data, len(starts_S) - 1)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code, or None where none was built."""
    path = next(iter(sorted(Path(__file__).parent.glob("_compiled.*.so"))), None)
    if path is None:
        return None
    loaded = ctypes.CDLL(str(path))
    strings = ctypes.POINTER(_Strings)
    loaded.wordpiece_new.argtypes = [ADDRESS, strings, ADDRESS, strings, ctypes.c_char_p, ctypes.c_int32, NUMBER]
    loaded.wordpiece_new.restype = ADDRESS
    loaded.wordpiece_free.argtypes = [ADDRESS]
    loaded.wordpiece_read.argtypes = [ADDRESS, strings, NUMBER, ADDRESS, ADDRESS]
    loaded.wordpiece_read.restype = ctypes.c_bool
    loaded.wordpiece_flatten.argtypes = [ADDRESS] * 4 + [NUMBER, ADDRESS]
    return loaded


class WordPiece:
    """A vocabulary in compiled code. Several threads may use it at once.

    Args:
        loaded: the compiled code.
        table: what each character becomes.
        model: the ``model`` of a ``tokenizer.json`` that `is_compatible`.
        added: tokens that are found anywhere in a text, before it is split into words.

    Raises:
        MemoryError: if there is none left.
    """

    def __init__(self, loaded: ctypes.CDLL, table: Characters, model: dict[str, Any], added: Sequence[str]) -> None:
        self._library, self._table = loaded, table
        vocabulary: dict[str, int] = model["vocab"]
        (tokens, starts_S), (others, other_starts_S) = end_to_end(list(vocabulary)), end_to_end(added)
        ids_V = np.fromiter(vocabulary.values(), np.int32, len(vocabulary))
        self._handle = loaded.wordpiece_new(
            table.ctypes.data,
            _Strings.of(tokens, starts_S),
            ids_V.ctypes.data,
            _Strings.of(others, other_starts_S),
            model["continuing_subword_prefix"].encode(),
            vocabulary[model["unk_token"]],
            model["max_input_chars_per_word"],
        )
        if not self._handle:
            raise MemoryError
        weakref.finalize(self, loaded.wordpiece_free, self._handle)

    def read(self, text: bytes, starts_S: Ints) -> tuple[Int32s, Ints]:
        """Reads sentences, with as many threads as torch may use.

        Args:
            text: UTF-8, all sentences end to end.
            starts_S: sentence n is ``text[starts_S[n] : starts_S[n + 1]]``.

        Returns:
            ids_T, those of sentence n from ``ids_T[starts_S[n]]``, and their number for each sentence [N], -1 where
            there is an added token or a character beyond the table.

        Raises:
            MemoryError: if there is none left.
        """
        ids_T = np.empty(len(text), np.int32)
        count_N = np.empty(len(starts_S) - 1, np.int64)
        threads = min(torch.get_num_threads(), 1 + len(text) // BYTES_PER_THREAD)
        sentences, outputs = _Strings.of(text, starts_S), (ids_T.ctypes.data, count_N.ctypes.data)
        if not self._library.wordpiece_read(self._handle, sentences, threads, *outputs):
            raise MemoryError
        return ids_T, count_N

    def flatten(self, ids_T: Int32s, starts_S: Ints, length_N: Ints, offsets_S: Ints, flat: Ints) -> None:
        """Copies the first ``length_N[n]`` ids of each sentence to ``flat[offsets_S[n]]`` and behind it."""
        places = (a.ctypes.data for a in (ids_T, starts_S, length_N, offsets_S))
        self._library.wordpiece_flatten(*places, len(length_N), flat.ctypes.data)


def end_to_end(texts: Sequence[str]) -> tuple[bytes, Ints]:
    """Texts as one, in UTF-8, and where each starts and the last one ends [S].

    Raises:
        TypeError: if one of them is no text.
        UnicodeEncodeError: if one of them cannot be encoded.
    """
    joined = "".join(texts)
    parts: Sequence[str] | list[bytes] = texts if joined.isascii() else [text.encode() for text in texts]
    starts_S = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(texts)), out=starts_S[1:])
    return joined.encode(), starts_S
