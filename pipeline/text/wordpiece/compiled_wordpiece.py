"""Finds, loads and calls BERT's WordPiece as compiled code, and decides which tokenizers and characters it supports.

The sources are in ``cpp``, built by ``setup.py``. BERT's normalizer and splitting into words treat each character for
itself: it becomes part of a word (a small letter, a letter without its accent, nothing), a space, or a separate word. A
tokenizer is therefore run once on every character. Characters that combine with their neighbours are the exception:
Unicode sorts the marks after a letter before BERT removes them. `tokenizers` reads the sentences with such characters
or with one beyond the table. It also reads all sentences of a tokenizer that is not compatible in every part.

Shapes: N sentences, S = N + 1 starts, T bytes of all sentences end to end.
"""

import ctypes
import unicodedata
import weakref
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from pipeline.arrays import Ints

Int32s = npt.NDArray[np.int32]
# A smaller text is read before another thread has started.
BYTES_PER_THREAD = 2**15
NUMBER, ADDRESS = ctypes.c_int64, ctypes.c_void_p
# This is three times the vocabulary of multilingual BERT. The trie takes 40 bytes of memory for each byte.
MAX_VOCABULARY_BYTES = 2 * 2**20
# An unknown key in one of these parts may change ids, so the sets must match exactly.
NORMALIZER = {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
MODEL = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
ADDED_TOKEN = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
# Below 0x3000 lie alphabets, punctuation and symbols. A table with Chinese characters would take much longer to make.
NUM_CHARACTERS = 0x3000
IN_WORD, SPACE, WORD_OF_ITS_OWN, UNKNOWN = range(4)
UNKNOWN_ENTRY = (UNKNOWN, 0, 0, b"")
CHARACTER = np.dtype([("kind", "u1"), ("characters", "u1"), ("bytes", "u1"), ("text", "S5")])
# Every normalizer of BERT leaves a digit as it is, and no other character decomposes into this one.
BETWEEN = "0"
Characters = npt.NDArray[Any]


class _Strings(ctypes.Structure):
    """Strings end to end, and their starts."""

    _fields_ = (("bytes", ctypes.c_char_p), ("starts", ADDRESS), ("count", NUMBER))

    @classmethod
    def of(cls, text: bytes, starts_S: Ints) -> "_Strings":
        """Returns strings for C. The arrays must be kept alive as long as C uses them."""
        return cls(text, starts_S.ctypes.data, len(starts_S) - 1)


@cache
def library() -> ctypes.CDLL | None:
    """Returns the compiled code, or None if it was not built."""
    # Sorting makes the choice reproducible if there are several builds.
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


class CompiledWordPiece:
    """A vocabulary in compiled code. Several threads may use it at once.

    Args:
        loaded: the compiled code.
        table: the conversion of each character.
        model: the ``model`` of a ``tokenizer.json`` for which `is_compatible` is true.
        added: tokens that are searched in the whole text before it is split into words.

    Raises:
        MemoryError: if memory is exhausted.
    """

    def __init__(self, loaded: ctypes.CDLL, table: Characters, model: dict[str, Any], added: Sequence[str]) -> None:
        # The compiled code keeps the table's address, so this reference keeps the table alive.
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
        # A finalizer also runs at interpreter exit, where `__del__` may find modules gone.
        weakref.finalize(self, loaded.wordpiece_free, self._handle)

    def read(self, text: bytes, starts_S: Ints) -> tuple[Int32s, Ints]:
        """Reads sentences, with as many threads as torch may use.

        Args:
            text: UTF-8, all sentences end to end.
            starts_S: sentence n is ``text[starts_S[n] : starts_S[n + 1]]``.

        Returns: ids_T, in which sentence n starts at ``ids_T[starts_S[n]]``, and the number of ids for each sentence
            [N], or -1 for a sentence with an added token or a character beyond the table.

        Raises:
            MemoryError: if memory is exhausted.
        """
        # A text has at most one id per byte, so each sentence's ids fit where its bytes stand.
        ids_T = np.empty(len(text), np.int32)
        count_N = np.empty(len(starts_S) - 1, np.int64)
        threads = 1 + len(text) // BYTES_PER_THREAD
        if threads > 1:
            import torch  # takes seconds, which reading a few texts does not

            threads = min(torch.get_num_threads(), threads)
        sentences, outputs = _Strings.of(text, starts_S), (ids_T.ctypes.data, count_N.ctypes.data)
        if not self._library.wordpiece_read(self._handle, sentences, threads, *outputs):
            raise MemoryError
        return ids_T, count_N

    def flatten(self, ids_T: Int32s, starts_S: Ints, length_N: Ints, offsets_S: Ints, flat: Ints) -> None:
        """Copies the first ``length_N[n]`` ids of each sentence to ``flat`` from ``offsets_S[n]``."""
        places = (a.ctypes.data for a in (ids_T, starts_S, length_N, offsets_S))
        self._library.wordpiece_flatten(*places, len(length_N), flat.ctypes.data)


def end_to_end(texts: Sequence[str]) -> tuple[bytes, Ints]:
    """Returns texts as one array of UTF-8, with the starts of the texts and the end of the last one [S].

    Raises:
        TypeError: if one of them is not text.
        UnicodeEncodeError: if one of them cannot be encoded.
    """
    joined = "".join(texts)
    # ASCII texts have as many bytes as characters, so encoding each one can be skipped.
    parts: Sequence[str] | list[bytes] = texts if joined.isascii() else [text.encode() for text in texts]
    starts_S = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(texts)), out=starts_S[1:])
    return joined.encode(), starts_S


def is_compatible(content: dict[str, Any]) -> bool:
    """Whether the ids of a sentence are those of its words, by WordPiece.

    Args:
        content: a tokenizer in the library's own format.
    """
    return (
        _is(content["normalizer"], "BertNormalizer", NORMALIZER)
        and _is(content["pre_tokenizer"], "BertPreTokenizer", {"type"})
        and _is(content["model"], "WordPiece", MODEL)
        and _is_usable(content["model"])
        and all(token.keys() == ADDED_TOKEN and token["content"] for token in content["added_tokens"])
        and _reads_each_sentence_once(content["post_processor"])
    )


def _is(part: dict[str, Any] | None, kind: str, keys: set[str]) -> bool:
    return part is not None and part["type"] == kind and part.keys() == keys


def _is_usable(model: dict[str, Any]) -> bool:
    vocabulary: dict[str, int] = model["vocab"]
    return (
        model["unk_token"] in vocabulary
        # A zero byte ends a string in C.
        and "\0" not in model["continuing_subword_prefix"]
        and max(vocabulary.values()) < 2**31
        and model["max_input_chars_per_word"] < 2**31
        and sum(len(token.encode()) for token in vocabulary) <= MAX_VOCABULARY_BYTES
    )


def _reads_each_sentence_once(post_processor: dict[str, Any] | None) -> bool:
    if post_processor is None or post_processor["type"] == "BertProcessing":
        return True
    return (
        post_processor["type"] == "TemplateProcessing"
        and _sentences(post_processor["single"]) == ["A"]
        and sorted(_sentences(post_processor["pair"])) == ["A", "B"]
    )


def _sentences(template: list[dict[str, Any]]) -> list[str]:
    return [piece["Sequence"]["id"] for piece in template if "Sequence" in piece]


def character_table(tokenizer: Tokenizer, firsts: Collection[str] = ()) -> Characters | None:
    """Runs a tokenizer of BERT's kind on the first `NUM_CHARACTERS` characters.

    Args:
        tokenizer: its normalizer and pre-tokenizer are used.
        firsts: normal characters that begin added tokens. Text without them contains only words. Characters that become
            one of them are left to the library, and all characters if one is empty.

    Returns: An array of `CHARACTER`, or None if there is not exactly one result per character.
    """
    known = _results_by_character(without_vocabulary(tokenizer))
    if known is None or not firsts:
        return known and known[0]
    table = known[0].copy()
    for character, result in known[1].items():
        # Added tokens are found by the library only, so sentences that may contain one are left to it.
        if any(first in result for first in firsts):
            table[ord(character)] = UNKNOWN_ENTRY
    return table


def without_vocabulary(tokenizer: Tokenizer) -> str:
    """Returns what decides the conversion of characters, as JSON: the normalizer and the pre-tokenizer."""
    decisive = Tokenizer(WordPiece())
    decisive.normalizer, decisive.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    return str(decisive.to_str())


# Running the tokenizer on all characters takes a hundred times as long as the rest of making a reader.
@lru_cache(maxsize=16)
def _results_by_character(tokenizer_json: str) -> tuple[Characters, dict[str, str]] | None:
    """Returns the table of a normalizer and a pre-tokenizer, and the results.

    None if there is not exactly one per character.
    """
    characters = [chr(code) for code in range(NUM_CHARACTERS) if _is_independent(chr(code))]
    results = apply_to_characters(Tokenizer.from_str(tokenizer_json), characters)
    if len(results) != len(characters):
        return None
    table = np.zeros(NUM_CHARACTERS, CHARACTER)
    table["kind"] = UNKNOWN
    for character, result in zip(characters, results, strict=True):
        table[ord(character)] = _entry(character, result)
    # The cached table is shared by all readers, so writing to it must fail.
    table.flags.writeable = False
    return table, dict(zip(characters, results, strict=True))


def apply_to_characters(tokenizer: Tokenizer, characters: Sequence[str]) -> list[str]:
    """Returns a BERT tokenizer's text for each character between two digits, with spaces where it splits words.

    If a character interacts with others, the numbers of results and characters differ.
    """
    others = [character for character in characters if character != BETWEEN]
    normal = tokenizer.normalizer.normalize_str(BETWEEN + BETWEEN.join(others) + BETWEEN)
    words = " ".join(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    first, *results, last = words.split(BETWEEN)
    if first or last or len(results) != len(others):
        return []
    given = iter(results)
    return [BETWEEN if character == BETWEEN else next(given) for character in characters]


def _is_independent(character: str) -> bool:
    """Whether a character is independent of its neighbours: not a mark, and known to this version of Python."""
    category = unicodedata.category(character)
    return category[0] != "M" and category not in {"Cn", "Cs"}


def _entry(character: str, result: str) -> tuple[int, int, int, bytes]:
    text = result.strip(" ")
    size = len(text.encode())
    kind = {text: IN_WORD, " ": SPACE, f" {text} ": WORD_OF_ITS_OWN}.get(result, UNKNOWN)
    # The compiled code has room for one id per byte of text, so no character may become longer than it was.
    if " " in text or size > CHARACTER["text"].itemsize or len(text) > len(character.encode()):
        kind = UNKNOWN
    return (kind, len(text), size, text.encode()) if kind != UNKNOWN else UNKNOWN_ENTRY
