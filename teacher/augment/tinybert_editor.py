"""The editor of ``tinybert``: words replaced by their candidates (Jiao et al. 2020, algorithm 1).

Shapes: S sites of all rows, V variants.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Ints
from pipeline.seeded import hashed, uniform
from teacher.augment.sites import Sites
from teacher.augment.words import Edited, in_case_of, spliced

REPLACE, CHOOSE = 1, 2  # what a random number is for
KINDS = frozenset({"tinybert"})


@dataclass(frozen=True)
class TinyBertEditor:
    """The method with its settings.

    Attributes:
        sites: what may be replaced, by the numbers of the sentences.
        numbers_NS: int64, the number of the sentence of each row and side.
        probability: of a site to be replaced, p_t.
        seed: of all choices.
    """

    sites: Sites
    numbers_NS: Ints
    probability: float
    seed: int

    def edit(self, sentences: Sequence[str], source_rows: Ints, side: int, variants: Ints) -> list[list[Edited | None]]:
        """Variants of sentences, as `Editor.edit` says; none is given up."""
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
            if new.lower() != old.lower():
                replacements.append((spans[place], in_case_of(new, old)))
        return Edited(
            spliced(text, replacements), KINDS if replacements else frozenset(), len(replacements), len(text.split())
        )


def _places(offsets: Ints, rows: Ints) -> Ints:
    """The numbers of all items of some rows, one row after the other."""
    lengths = np.diff(offsets)[rows]
    ends = np.cumsum(lengths)
    return np.asarray(np.repeat(offsets[rows] - ends + lengths, lengths) + np.arange(lengths.sum()))
