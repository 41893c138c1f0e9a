"""The words of texts: the tokens of each word, and texts with one word replaced.

Sentences that are lists of words are joined with spaces, so that every tokenizer reads them like texts. For BERT, this
equals ``is_split_into_words`` of transformers. In a text, words are separated by spaces, as in the page of `distill
serve`.

Shapes: N sentences, T tokens of all of them, W words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.arrays import Bools, Ints, Ragged

if TYPE_CHECKING:
    from tokenizers import Encoding

    from pipeline.text.text_to_ids import TextReader


@dataclass(frozen=True)
class Pieces:
    """Sentences in tokens, without special tokens.

    Attributes:
        ids: the tokens.
        word_ids: for each token the number of its word in the sentence. A word may have no token.
    """

    ids: Ragged
    word_ids: Ragged

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_first_T(self) -> Bools:
        """Returns which tokens are the first of their word. Their label is the label of the word."""
        is_first_T = np.ones(len(self.word_ids.flat), dtype=bool)
        # Two sentences may end and begin with the same word number, so each start is marked separately below.
        is_first_T[1:] = np.diff(self.word_ids.flat) != 0
        is_first_T[self.word_ids.offsets[:-1][self.word_ids.lengths > 0]] = True
        return is_first_T

    def by_word(self, number_T: Ints, num_words_N: Ints, otherwise: int) -> Ragged:
        """Returns a number for each word: that of its first token, or ``otherwise`` for words without tokens.

        Args:
            number_T: a number for each token.
            num_words_N: words per sentence.
            otherwise: the number for words that have no token or were truncated.
        """
        offsets = np.concatenate([[0], np.cumsum(num_words_N, dtype=np.int64)])
        number_W = np.full(offsets[-1], otherwise, dtype=np.int64)
        is_first_T = self.is_first_T
        # The first token stands for its word, as in the evaluation of BERT on CoNLL (Devlin et al. 2019).
        number_W[self.place_T(offsets)[is_first_T]] = number_T[is_first_T]
        return Ragged(number_W, offsets)

    def on_first(self, number_W: Ragged, otherwise: int) -> Ints:
        """Returns the number of each word on its first token [T], and ``otherwise`` on the other tokens."""
        is_first_T = self.is_first_T
        number_T = np.full(len(is_first_T), otherwise, dtype=np.int64)
        number_T[is_first_T] = number_W.flat[self.place_T(number_W.offsets)[is_first_T]]
        return number_T

    def where(self, is_kept_T: Bools) -> "Pieces":
        """Returns the sentences with only some of their tokens."""
        offsets = np.concatenate([[0], np.cumsum(is_kept_T, dtype=np.int64)])[self.ids.offsets]
        return Pieces(*(Ragged(part.flat[is_kept_T], offsets) for part in (self.ids, self.word_ids)))

    def place_T(self, word_offsets: Ints) -> Ints:
        """Returns the position of each token's word among the words of all sentences."""
        return np.repeat(word_offsets[:-1], self.word_ids.lengths) + self.word_ids.flat


def read_pieces(reader: "TextReader", sentences: Sequence[Sequence[str]], room: int | None = None) -> Pieces:
    """Returns sentences in tokens, truncated to the maximum length.

    Raises:
        IntegrityError: if the tokenizer fails on a text.
    """
    # Encoding the joined text keeps the tokenizer's own rules for spaces, which encoding words one by one would lose.
    texts = [" ".join(words) for words in sentences]
    read = [
        _read(encoding, text, words, room)
        for encoding, text, words in zip(reader.encode(texts), texts, sentences, strict=True)
    ]
    return Pieces(Ragged.of([ids for ids, _ in read]), Ragged.of([word_ids for _, word_ids in read]))


def _read(encoding: "Encoding", text: str, words: Sequence[str], room: int | None) -> tuple[list[int], list[int]]:
    ids: list[int] = encoding.ids[:room]
    # One is added for the space between two words.
    starts = np.concatenate([[0], np.cumsum([len(word) + 1 for word in words[:-1]], dtype=np.int64)])
    places = [_place(start, stop, text) for start, stop in encoding.offsets[:room]]
    return ids, (np.searchsorted(starts, places, side="right") - 1).tolist()


def _place(start: int, stop: int, text: str) -> int:
    """Returns the position of a character in the token's word.

    A lone space belongs to the next word, as in SentencePiece.
    """
    place = stop - 1 if start < stop and not text[stop - 1].isspace() else stop
    # A token without characters may stand at the very end of the text.
    return min(place, len(text) - 1)


def with_each_word_replaced(text: str, instead: str = "") -> Iterator[str]:
    """Returns the text with only its first word replaced, with only its second word replaced, and so on.

    Args:
        text: any text.
        instead: the replacement. Empty: remove the word.
    """
    words = text.split()
    for place in range(len(words)):
        yield " ".join([*words[:place], *([instead] if instead else []), *words[place + 1 :]])
