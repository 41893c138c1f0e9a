"""Converts all text to ids. They equal those of `tokenizers`, but compiled WordPiece is many times as fast for BERT.

Shapes: N sentences, S = N + 1 starts, T bytes of all sentences end to end.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from pipeline.arrays import Ints, Ragged, stacked
from pipeline.text.tokenizer import FAILURE, Tokenized, frame_of, framed, reported, tokenize
from pipeline.text.wordpiece.compiled_wordpiece import (
    CompiledWordPiece,
    Int32s,
    character_table,
    end_to_end,
    is_compatible,
    library,
)
from pipeline.untrusted import require_text

# The temporary buffers grow with this number. Larger ones are not faster.
SENTENCES_AT_ONCE = 8192

# Single sentences are one part, and pairs are two: the first sentences and the second ones.
Texts = tuple[Sequence[str], ...]


@dataclass(frozen=True)
class TextReader:
    """Reads sentences like a tokenizer. Texts on which the tokenizer fails raise an `IntegrityError`.

    BERT's WordPiece runs as compiled code if that was built. The library reads the sentences that the compiled code
    does not support, such as Chinese or with ``[MASK]``, and all sentences of other tokenizers.

    Attributes:
        tokenizer: must not be changed while the reader exists. Its truncation and padding are replaced.
        wordpiece: the compiled code, or None.
    """

    tokenizer: Tokenizer
    wordpiece: CompiledWordPiece | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TextReader":
        """Returns the reader for the current state of a tokenizer."""
        content = json.loads(tokenizer.to_str())
        loaded = library()
        # Any difference from BERT's WordPiece could change ids, so other tokenizers always use the library.
        if loaded is None or not is_compatible(content):
            return cls(tokenizer, None)
        tokens = content["added_tokens"]
        # Tokens that are not normalised are found in the raw text, and the others in the normalised text.
        found_in_text = [token["content"] for token in tokens if not token["normalized"]]
        with reported(FAILURE):
            found_in_words = [tokenizer.normalizer.normalize_str(t["content"]) for t in tokens if t["normalized"]]
            table = character_table(tokenizer, [token.strip()[:1] for token in found_in_words])
        if table is None:
            return cls(tokenizer, None)
        return cls(tokenizer, CompiledWordPiece(loaded, table, content["model"], found_in_text))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles only the tokenizer, from which the reader is made again: compiled code cannot be pickled."""
        # A pickled handle would be an address of another process.
        return TextReader.of, (self.tokenizer,)

    def read(
        self, sentences1: Sequence[str], sentences2: Sequence[str] | None, max_seq_length: int | None
    ) -> tuple[Ragged, ...]:
        """Returns ids of single sentences, or of the first and the second sentences of pairs, without special tokens.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, or None.
            max_seq_length: maximum number of tokens per input, including special tokens. The longer sentence of a pair
                is truncated first. None: no truncation.

        Raises:
            DataError: if a sentence is not text.
            IntegrityError: if the tokenizer fails on a text.
            ValueError: if the numbers of first and second sentences differ.
        """
        texts: Texts = (sentences1,) if sentences2 is None else (sentences1, sentences2)
        # A missing second sentence would shift all later pairs by one row.
        if len(texts[0]) != len(texts[-1]):
            raise ValueError(f"{len(texts[0])} first sentences, but {len(texts[-1])} second ones")
        parts = [
            self._read(tuple(text[start : start + SENTENCES_AT_ONCE] for text in texts), max_seq_length, start)
            # No sentences still make one empty part, whose arrays have the right types.
            for start in range(0, max(1, len(sentences1)), SENTENCES_AT_ONCE)
        ]
        return tuple(stacked(part) for part in zip(*parts, strict=True))

    def encode(self, sentences: Sequence[str]) -> list[Encoding]:
        """Returns encodings of sentences without truncation and special tokens: ids and their positions in the text.

        Raises:
            IntegrityError: if the tokenizer fails on a text.
        """
        self._disable_truncation()
        with reported(FAILURE):
            encodings: list[Encoding] = self.tokenizer.encode_batch(list(sentences), add_special_tokens=False)
            return encodings

    def tokenize(
        self, sentences1: Sequence[str], sentences2: Sequence[str] | None, max_seq_length: int
    ) -> list[Tokenized]:
        """Returns inputs as the teacher reads them, with special tokens. See `read` for arguments and errors."""
        # Without special tokens around sentences, an empty sentence changes the types of the other one.
        frame = None if self.wordpiece is None else frame_of(self.tokenizer, sentences2 is not None)
        if frame is None:
            return tokenize(self.tokenizer, sentences1, sentences2, max_seq_length)
        parts = [part.lists() for part in self.read(sentences1, sentences2, max_seq_length)]
        return [framed(frame, sentences) for sentences in zip(*parts, strict=True)]

    def _read(self, texts: Texts, max_seq_length: int | None, first_row: int) -> tuple[Ragged, ...]:
        joined = [_joined(sentences) for sentences in texts]
        room = None
        if max_seq_length is not None:
            # Special tokens count in the limit, as they do for the teacher.
            room = max_seq_length - self.tokenizer.num_special_tokens_to_add(len(texts) == 2)
        if self.wordpiece is None or (room is not None and room < 0) or None in joined:
            # Joining fails on anything but text, and only this check can name the row.
            require_text(texts, first_row)
            if max_seq_length is None:
                return tuple(Ragged.of(self._encoded_by_library(sentences)) for sentences in texts)
            rows = tokenize(self.tokenizer, texts[0], texts[1] if len(texts) == 2 else None, max_seq_length)
            return tuple(Ragged.of([(row.ids1, row.ids2)[k] for row in rows]) for k in range(len(texts)))
        read = [self._sentences(self.wordpiece, text, *j) for text, j in zip(texts, joined, strict=True) if j]
        counts = [sentences.count_N for sentences in read]
        lengths = counts if room is None else _truncated_lengths(counts, room)
        return tuple(r.flat(self.wordpiece, length_N) for r, length_N in zip(read, lengths, strict=True))

    def _encoded_by_library(self, sentences: Sequence[str]) -> list[list[int]]:
        self._disable_truncation()
        with reported(FAILURE):
            encodings = self.tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]

    def _sentences(
        self, wordpiece: CompiledWordPiece, sentences: Sequence[str], text: bytes, starts_S: Ints
    ) -> "_Sentences":
        ids_T, count_N = wordpiece.read(text, starts_S)
        # A few sentences contain characters beyond the table. The library reads only these, so the others stay fast.
        unknown = np.flatnonzero(count_N < 0).tolist()
        answers = self._encoded_by_library([sentences[n] for n in unknown]) if unknown else []
        for n, ids in zip(unknown, answers, strict=True):
            count_N[n] = len(ids)
        return _Sentences(ids_T, starts_S, count_N, dict(zip(unknown, answers, strict=True)))

    def tokenizer_json(self) -> str:
        """Returns the tokenizer as JSON, without truncation and padding."""
        self._disable_truncation()
        return self.tokenizer.to_str()

    def _disable_truncation(self) -> None:
        # Setting an equal value would still lock out the library's threads, and changes are not safe for other threads.
        if self.tokenizer.truncation or self.tokenizer.padding:
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()


@dataclass(frozen=True)
class _Sentences:
    """Sentences that were read.

    Attributes:
        ids_T: the ids. Those of sentence n start at ``ids_T[starts_S[n]]``.
        starts_S: the start of each sentence's text.
        count_N: the number of ids of each sentence.
        answers: the ids of the sentences that the library read.
    """

    ids_T: Int32s
    starts_S: Ints
    count_N: Ints
    answers: dict[int, list[int]]

    def flat(self, wordpiece: CompiledWordPiece, length_N: Ints) -> Ragged:
        """Returns the first ids of each sentence, without the gaps."""
        offsets_S = np.zeros_like(self.starts_S)
        np.cumsum(length_N, out=offsets_S[1:])
        # The compiled code leaves a gap after each sentence, since there are fewer ids than bytes.
        flat = np.empty(offsets_S[-1], np.int64)
        compiled_N = length_N.copy()
        if self.answers:
            compiled_N[list(self.answers)] = 0
        wordpiece.flatten(self.ids_T, self.starts_S, compiled_N, offsets_S, flat)
        for n, ids in self.answers.items():
            flat[offsets_S[n] : offsets_S[n + 1]] = ids[: length_N[n]]
        return Ragged(flat, offsets_S)


def _joined(sentences: Sequence[str]) -> tuple[bytes, Ints] | None:
    """Returns all sentences as bytes and their starts [S], or None if a sentence cannot be encoded."""
    try:
        return end_to_end(sentences)
    except (TypeError, UnicodeEncodeError):
        return None


def _truncated_lengths(counts: list[Ints], room: int) -> list[Ints]:
    """Returns the length of each sentence after truncation to ``room`` tokens, the longer one of a pair first."""
    if len(counts) == 1:
        return [np.minimum(counts[0], room)]
    # This is the library's "longest first" in closed form: the shorter sentence keeps up to half of the room.
    short_N = np.minimum(np.minimum(*counts), room // 2)
    long_N = np.minimum(np.maximum(*counts), room - short_N)
    # Of equally long sentences the first loses the odd token, as in the library.
    is_first_N = counts[0] <= counts[1]
    return [np.where(is_first_N, short_N, long_N), np.where(is_first_N, long_N, short_N)]
