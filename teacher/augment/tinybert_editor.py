"""The editor of ``tinybert``: replaces words by their candidates (Jiao et al. 2020, algorithm 1).

The candidates for each replaceable word ("site") are computed once, stored in files, and kept in compact arrays.

Shapes: S sites of all rows, V variants.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Ints, Ragged, hashed, uniform
from pipeline.errors import IntegrityError
from teacher.augment.tinybert_words import Edited, Span, in_case_of, spliced

SCHEMA = pa.schema(
    [
        pa.field("start", pa.list_(pa.int32()), nullable=False),
        pa.field("stop", pa.list_(pa.int32()), nullable=False),
        pa.field("candidates", pa.list_(pa.list_(pa.string())), nullable=False),
    ]
)
REPLACE, CHOOSE = 1, 2  # part of the hashed key, one per use of random numbers
KINDS = frozenset({"tinybert"})


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
    return pa.table(columns, schema=SCHEMA)


def read_sites(paths: Iterable[Path]) -> Sites:
    """Reads files of such tables, one after the other. Candidates become small numbers at once.

    Raises:
        IntegrityError: if a file is damaged.
    """
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
        return pq.read_table(path, schema=SCHEMA, partitioning=None, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise IntegrityError(f"{path}: damaged: {error}. Remove it and repeat the command.") from error


def _offsets(lengths: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])


@dataclass(frozen=True)
class TinyBertEditor:
    """The method with its settings.

    Attributes:
        sites: the replaceable words, by the numbers of the sentences.
        numbers_NS: int64, the number of the sentence of each row and side.
        probability: p_t, the probability that a site is replaced.
        seed: the seed of all choices.
    """

    sites: Sites
    numbers_NS: Ints
    probability: float
    seed: int

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Returns variants of sentences. No variant is given up. See `Editor.edit`."""
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
            spliced(text, replacements), KINDS if replacements else frozenset(), len(replacements), len(text.split())
        )


def _places(offsets: Ints, rows: Ints) -> Ints:
    """Returns the numbers of all items of some rows, one row after the other."""
    lengths = np.diff(offsets)[rows]
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(offsets[rows] - ends + lengths, lengths) + np.arange(lengths.sum()))
