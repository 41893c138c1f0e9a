"""The editors of sentences: ``tinybert``, ``mask-pos`` and ``mask-each``.

``tinybert`` replaces words by their candidates (Jiao et al. 2020, algorithm 1). The candidates for each replaceable
word ("site") are computed once, stored in files, and kept in compact arrays. ``mask-pos`` masks words and replaces
words by others of the same part of speech (Tang et al. 2019, section 3). As in the thesis on the distilled BiLSTM, each
word is masked, replaced or kept. ``mask-each`` masks one word at a time.

Shapes: S words or sites of all rows, V variants.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Floats64, Ints, Ragged, hashed, uniform
from pipeline.errors import IntegrityError, MissingDependencyError
from pipeline.sources import ROWS_AT_ONCE
from pipeline.tasks.task import MASK
from pipeline.text.word_pieces import with_each_word_replaced

Span = tuple[int, int]  # start and stop (exclusive) in characters

LETTERS = re.compile(r"[A-Za-z]+")
# Contractions that must stay whole, also in tokenized text ("don't", "do n't", "doesn 't", "o'clock"), and the endings
# of others ("it's", "we 'll", "dog's"). The first part of the latter is a stop word or, in a possessive, any word.
CONTRACTION = re.compile(
    r"(?<!\w)\w*(?: ?n)? ?['\u2019]t\b|(?<!\w)\w+['\u2019](?!s\b)\w+|['\u2019](?:s|re|ve|ll|d|m)\b", re.IGNORECASE
)
# The usual English stop words. Above all, negations are never replaced, because that would change the label.
_STOP_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both but by
can cannot could did do does doing down during each few for from further had has have having he her here hers
herself him himself his how i if in into is it its itself let me more most my myself no nor not of off on once only
or other ought our ours ourselves out over own same she should so some such than that the their theirs them
themselves then there these they this those through to too under until up very was we were what when where which
while who whom why with would you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Words as the Penn Treebank has them ("do", "n't"), and punctuation marks.
WORD = re.compile(
    r"[^\W_]+(?=n['\u2019]t\b)|n['\u2019]t\b|['\u2019](?:s|re|ve|ll|d|m)\b|\w+(?:-\w+)*|[^\w\s]", re.IGNORECASE
)
# part of the hashed key of a method, one per use of random numbers
CHANGE, CHOOSE, NGRAM, NGRAM_LENGTH, NGRAM_START = 1, 2, 3, 4, 5
REPLACE = 1
LONGEST_NGRAM = 5
Tagger = Callable[[Sequence[str]], list[str]]
"""Returns the tag of each word of a sentence."""

STRAIGHT_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
SITES_SCHEMA = pa.schema(
    [
        pa.field("start", pa.list_(pa.int32()), nullable=False),
        pa.field("stop", pa.list_(pa.int32()), nullable=False),
        pa.field("candidates", pa.list_(pa.list_(pa.string())), nullable=False),
    ]
)
TINYBERT_KINDS = frozenset({"tinybert"})


class Edited(NamedTuple):
    """A sentence in which ``changed`` of its ``words`` words were replaced, and the kinds of changes."""

    text: str
    kinds: frozenset[str]
    changed: int
    words: int


def replaceable(text: str, spans: Iterable[Span]) -> set[Span]:
    """Returns the words of a text with only letters a to z, without stop words and parts of contractions."""
    in_contractions = {place for match in CONTRACTION.finditer(text) for place in range(*match.span())}
    words = ((span, text[slice(*span)]) for span in spans if span[0] not in in_contractions)
    # Names with digits or accents have no sensible substitutes in a masked LM's vocabulary.
    return {span for span, word in words if LETTERS.fullmatch(word) and word.lower() not in STOP_WORDS}


def spliced(text: str, replacements: Iterable[tuple[Span, str]]) -> str:
    """Returns the text with other words at some places, which are in order and do not overlap."""
    parts, end = [], 0
    for (start, stop), word in replacements:
        parts += [text[end:start], word]
        end = stop
    return "".join([*parts, text[end:]])


def in_case_of(word: str, other: str) -> str:
    """Returns the word in the case of another one: Title case, CAPITALS, or unchanged."""
    if len(other) > 1 and other.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if other[:1].isupper() else word


class Site(NamedTuple):
    """A replaceable word of a sentence, and the words to choose from, at least one."""

    span: Span
    candidates: list[str]


@dataclass(frozen=True)
class Sites:
    """The sites of sentences, by the sentences' numbers.

    Attributes:
        start: per sentence, the starts of its sites in characters.
        stop: per sentence, the ends of its sites.
        choices: per site, the numbers of its candidates in ``words``.
        words: the distinct candidates.
    """

    start: Ragged
    stop: Ragged
    choices: Ragged
    words: list[str]


def table_of_sites(sites: Sequence[Sequence[Site]]) -> pa.Table:
    """Returns the sites of some sentences as a table, a row per sentence."""
    columns = {
        "start": [[site.span[0] for site in row] for row in sites],
        "stop": [[site.span[1] for site in row] for row in sites],
        "candidates": [[site.candidates for site in row] for row in sites],
    }
    return pa.table(columns, schema=SITES_SCHEMA)


def read_sites(paths: Iterable[Path]) -> Sites:
    """Reads files of such tables, one after the other. Candidates become small numbers at once."""
    parts: dict[str, list[np.ndarray]] = {"start": [], "stop": [], "per_sentence": [], "per_site": []}
    chosen: list[pa.DictionaryArray] = []
    for path in paths:
        table = _read(path)
        candidates = table.column("candidates").combine_chunks()
        per_site = candidates.flatten()
        for name in ("start", "stop"):
            parts[name].append(table.column(name).combine_chunks().flatten().to_numpy())
        parts["per_sentence"].append(pc.list_value_length(candidates).to_numpy())
        parts["per_site"].append(pc.list_value_length(per_site).to_numpy())
        # Candidates repeat a lot. As numbers they take 4 bytes each instead of a Python string.
        chosen.append(per_site.flatten().dictionary_encode())
    whole = pa.chunked_array(chosen, pa.dictionary(pa.int32(), pa.string())).unify_dictionaries().combine_chunks()
    offsets = _offsets(parts["per_sentence"])
    return Sites(
        start=Ragged(np.concatenate(parts["start"]), offsets),
        stop=Ragged(np.concatenate(parts["stop"]), offsets),
        choices=Ragged(whole.indices.to_numpy(), _offsets(parts["per_site"])),
        words=whole.dictionary.to_pylist(),
    )


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, schema=SITES_SCHEMA, partitioning=None, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IntegrityError(f"{path}: damaged: {error}. Remove it and repeat the command.") from error


def _offsets(lengths: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])


@dataclass(frozen=True)
class TinyBertEditor:
    """Replaces words by their candidates, with a certain probability (p_t)."""

    sites: Sites
    numbers_NS: Ints
    probability: float
    seed: int

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. No variant is given up."""
        numbers = self.numbers_NS[source_rows, side]
        start, stop = self.sites.start.take(numbers), self.sites.stop.take(numbers)
        site_S = _places(self.sites.start.offsets, numbers)
        row_S = np.repeat(np.arange(len(numbers)), start.lengths)
        key = (source_rows[row_S][:, None], variants, side, (np.arange(len(row_S)) - start.offsets[row_S])[:, None])
        replaced_SV = uniform(hashed(self.seed, REPLACE, *key)) < self.probability
        count_S = self.sites.choices.lengths[site_S]
        choice_SV = (uniform(hashed(self.seed, CHOOSE, *key)) * count_S[:, None]).astype(np.int64)
        word_SV = self.sites.choices.flat[self.sites.choices.offsets[site_S][:, None] + choice_SV]
        edited: list[list[Edited | None]] = []
        for n, text in enumerate(sentences):
            here = slice(start.offsets[n], start.offsets[n + 1])
            spans = list(zip(start[n].tolist(), stop[n].tolist(), strict=True))
            choices = [(replaced_SV[here, v], word_SV[here, v]) for v in range(len(variants))]
            edited.append([self._edited(text, spans, *choice) for choice in choices])
        return edited

    def _edited(self, text: str, spans: Sequence[tuple[int, int]], replaced_S: np.ndarray, word_S: Ints) -> Edited:
        replacements = []
        for place in np.flatnonzero(replaced_S).tolist():
            old, new = text[slice(*spans[place])], self.sites.words[word_S[place]]
            # The masked LM often proposes the original word, which counts as no change.
            if new.lower() != old.lower():
                replacements.append((spans[place], in_case_of(new, old)))
        return Edited(
            spliced(text, replacements),
            TINYBERT_KINDS if replacements else frozenset(),
            len(replacements),
            len(text.split()),
        )


def _places(offsets: Ints, rows: Ints) -> Ints:
    """Returns the numbers of all items of some rows, one row after the other."""
    lengths = np.diff(offsets)[rows]
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(offsets[rows] - ends + lengths, lengths) + np.arange(lengths.sum()))


@dataclass(frozen=True)
class Pools:
    """The distinct words of the training rows, and per tag the numbers of its words."""

    words: list[str]
    numbers: dict[str, Ints]


@dataclass(frozen=True)
class MaskPosEditor:
    """Masks words, replaces words by others of the same part of speech, and cuts some variants to 1 to 5 words."""

    mask_probability: float
    pos_probability: float
    ngram_probability: float
    seed: int
    tagger: Tagger | None = None
    pools: Pools = field(default_factory=lambda: Pools([], {}))
    mask: str = MASK

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. None for a variant without an unchanged word."""
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
            length = min(1 + int(ngram_3[1] * LONGEST_NGRAM), len(spans))
            first = int(ngram_3[2] * (len(spans) - length + 1))
            stop = first + length
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
    """Returns TextBlob's PatternTagger (Penn Treebank tags), which needs no downloads, and its name and version."""
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
    """Masks one word at a time."""

    mask: str

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. None for a variant beyond the last word."""
        return [self._edited(text, len(variants)) for text in sentences]

    def _edited(self, text: str, count: int) -> list[Edited | None]:
        words = len(text.split())
        masked = islice(with_each_word_replaced(text, self.mask), count)
        edited: list[Edited | None] = [Edited(part, frozenset({"mask"}), 1, words) for part in masked]
        return edited + [None] * (count - len(edited))
