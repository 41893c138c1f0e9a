"""The editors that mask words. Shapes: S words of all rows, V variants.

``mask-each`` masks one word at a time. ``mask-pos`` masks words and replaces words by others of the same part of speech
(Tang et al. 2019, section 3). As in the thesis on the distilled BiLSTM, each word is masked, replaced or kept.

Any function of type `Tagger` can provide the parts of speech.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats64, Ints, hashed, uniform
from pipeline.errors import MissingDependencyError
from pipeline.sources import ROWS_AT_ONCE
from pipeline.text.word_pieces import with_each_word_replaced
from teacher.augment.tinybert_words import MASK, Edited, Span, spliced

# Words as the Penn Treebank has them ("do", "n't"), and punctuation marks.
WORD = re.compile(
    r"[^\W_]+(?=n['\u2019]t\b)|n['\u2019]t\b|['\u2019](?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]", re.IGNORECASE
)
# part of the hashed key, one per use of random numbers
CHANGE, CHOOSE, NGRAM, NGRAM_LENGTH, NGRAM_START = 1, 2, 3, 4, 5
LONGEST_NGRAM = 5
Tagger = Callable[[Sequence[str]], list[str]]
"""Returns the tag of each word of a sentence."""

STRAIGHT_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")


@dataclass(frozen=True)
class Pools:
    """The words of the training rows by part of speech, with their frequencies.

    Attributes:
        words: the distinct words.
        numbers: per tag, numbers of words with repetitions, so that words are drawn by frequency.
    """

    words: list[str]
    numbers: dict[str, Ints]


@dataclass(frozen=True)
class MaskPosEditor:
    """The method with its settings.

    Attributes:
        mask_probability: the probability that a word is masked.
        pos_probability: the probability that a word is replaced by one of its part of speech.
        ngram_probability: the probability that a variant is reduced to 1 to 5 consecutive words.
        seed: the seed of all choices.
        tagger: finds parts of speech. Only needed for replacement.
        pools: the replacements of words.
        mask: the text of a masked word.
    """

    mask_probability: float
    pos_probability: float
    ngram_probability: float
    seed: int
    tagger: Tagger | None = None
    pools: Pools = field(default_factory=lambda: Pools([], {}))
    mask: str = MASK

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. None for a variant without an unchanged word. See `Editor.edit`."""
        spans = [words_in(text) for text in sentences]
        lengths = np.array([len(row) for row in spans])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        row_S = np.repeat(np.arange(len(spans)), lengths)
        key = (source_rows[row_S][:, None], variants, side, (np.arange(len(row_S)) - offsets[row_S])[:, None])
        change_SV = uniform(hashed(self.seed, CHANGE, *key))
        choose_SV = uniform(hashed(self.seed, CHOOSE, *key))
        ngram_3NV = uniform(
            hashed(
                self.seed,
                np.array([NGRAM, NGRAM_LENGTH, NGRAM_START])[:, None, None],
                source_rows[:, None],
                variants,
                side,
            )
        )
        edited = []
        for n, text in enumerate(sentences):
            here = slice(offsets[n], offsets[n + 1])
            tags = self.tagger([text[slice(*span)] for span in spans[n]]) if self.tagger else []
            rows = [
                self._edited(text, spans[n], tags, change_SV[here, v], choose_SV[here, v], ngram_3NV[:, n, v])
                for v in range(len(variants))
            ]
            edited.append(rows)
        return edited

    def _edited(
        self, text: str, spans: list[Span], tags: list[str], change_S: Floats64, choose_S: Floats64, ngram_3: Floats64
    ) -> Edited | None:
        first, stop = 0, len(spans)
        is_ngram = len(spans) > 0 and ngram_3[0] < self.ngram_probability
        if is_ngram:
            first, stop = _ngram(len(spans), ngram_3)
        hits: dict[Span, str] = {}
        for place in range(first, stop):
            word = self._instead(tags[place] if tags else None, change_S[place], choose_S[place])
            if word is not None:
                hits[spans[place]] = word
        # A variant in which every word changed has nothing in common with its row, so it is given up.
        if len(hits) == stop - first:
            return None
        # A word is in its own pool, so it may be drawn as its own replacement.
        replacements = [(span, word) for span, word in hits.items() if word != text[slice(*span)]]
        kinds = {"mask" if word == self.mask else "pos" for _, word in replacements} or (
            {"ngram"} if is_ngram else set()
        )
        start, end = (spans[first][0], spans[stop - 1][1]) if is_ngram else (0, len(text))
        moved = [((a - start, b - start), word) for (a, b), word in replacements]
        edited = spliced(text[start:end], _spaced(text[start:end], moved))
        return Edited(edited, frozenset(kinds), len(replacements), stop - first)

    def _instead(self, tag: str | None, change: float, choose: float) -> str | None:
        """Returns the replacement of a word, or None if it does not change."""
        if change < self.mask_probability:
            return self.mask
        if change >= self.mask_probability + self.pos_probability or tag not in self.pools.numbers:
            return None
        pool = self.pools.numbers[tag]
        word: str = self.pools.words[pool[int(choose * len(pool))]]
        return word


def words_in(text: str) -> list[Span]:
    """Returns the positions of a text's words. Punctuation marks and parts of contractions count as words."""
    return [match.span() for match in WORD.finditer(text)]


def make_pools(texts: Iterable[str], tagger: Tagger) -> Pools:
    """Returns the words of texts by part of speech.

    Left out are parts of speech of one word only, which leave no choice, and words without letters.
    """
    number: dict[str, int] = {}
    pools: dict[str, list[int]] = {}
    for text in texts:
        words = [text[slice(*span)] for span in words_in(text)]
        for word, tag in zip(words, tagger(words), strict=True):
            if any(c.isalpha() for c in word) and tag[:1].isalpha():
                pools.setdefault(tag, []).append(number.setdefault(word, len(number)))
    # Repetitions are kept, so that frequent words are drawn more often.
    with_choice = {tag: np.array(pool) for tag, pool in pools.items() if len(set(pool)) > 1}
    return Pools(list(number), with_choice)


def pools_of(rows: pa.Table, tagger: Tagger) -> Pools:
    """Returns the pools of all sentences of the rows. Only some of them are Python strings at a time."""
    batches = rows.select(["sentence1", "sentence2"]).to_batches(max_chunksize=ROWS_AT_ONCE)
    texts = (text for batch in batches for column in batch.columns for text in column.to_pylist() if text is not None)
    return make_pools(texts, tagger)


def _ngram(num_words: int, ngram_3: Floats64) -> tuple[int, int]:
    """Returns the range of 1 to 5 consecutive words out of so many."""
    length = min(1 + int(ngram_3[1] * LONGEST_NGRAM), num_words)
    first = int(ngram_3[2] * (num_words - length + 1))
    return first, first + length


def _spaced(text: str, replacements: list[tuple[Span, str]]) -> Iterable[tuple[Span, str]]:
    """Returns replacements with a space where they would merge with a part of a contraction."""
    end = 0
    for (start, stop), word in replacements:
        # The replacement before has already added the space before a letter.
        follows = start == end > 0
        before = " " if (not text[start].isalnum() if follows else text[start - 1 : start].isalnum()) else ""
        after = " " if text[stop : stop + 1].isalnum() else ""
        yield (start, stop), f"{before}{word}{after}"
        end = stop


def pattern_tagger() -> tuple[str, Tagger]:
    """Returns TextBlob's PatternTagger (Penn Treebank tags), which needs no downloads, and its name and version.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        from textblob.en.taggers import PatternTagger
    except ImportError as error:
        message = "parts of speech need textblob: pip install 'distill-offline[augment]', or use --pos-probability 0"
        raise MissingDependencyError(message) from error
    tagger = PatternTagger()

    def tags(words: Sequence[str]) -> list[str]:
        if not words:
            return []
        # Joined text instead of words: TextBlob's own tokenizer needs data that would have to be downloaded.
        text = " ".join(words).translate(STRAIGHT_QUOTES)
        word_tags = [tag for _, tag in tagger.tag(text, tokenize=False)]
        assert len(word_tags) == len(words), f"{len(word_tags)} tags for the {len(words)} words of {text!r}"
        return word_tags

    return f"textblob {version('textblob')} PatternTagger", tags


@dataclass(frozen=True)
class MaskEachEditor:
    """The editor of ``mask-each``: it masks one word at a time.

    Attributes:
        mask: the text of a masked word.
    """

    mask: str

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. None for a variant beyond the last word. See `Editor.edit`."""
        return [self._edited(text, len(variants)) for text in sentences]

    def _edited(self, text: str, count: int) -> list[Edited | None]:
        words = len(text.split())
        masked = islice(with_each_word_replaced(text, self.mask), count)
        edited: list[Edited | None] = [Edited(part, frozenset({"mask"}), 1, words) for part in masked]
        return edited + [None] * (count - len(edited))
