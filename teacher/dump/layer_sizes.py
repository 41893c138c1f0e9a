"""How large what layers say will be, from the lengths of a task's texts."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Ints
from pipeline.sets.signals import LayerSignal
from pipeline.sources import Source

CHARACTERS_PER_TOKEN = 4.3  # English text under BERT's vocabulary
SAMPLED_ROWS = 8192


def sampled_lengths(source: Source, specials: int, max_seq_length: int) -> Ints:
    """About how many tokens some rows have, spread evenly over those of all splits [at most SAMPLED_ROWS]."""
    characters = np.sum(sampled_characters(source), axis=0)
    tokens: Ints = np.minimum(characters // CHARACTERS_PER_TOKEN + specials, max_seq_length).astype(np.int64)
    return tokens


def sampled_characters(source: Source) -> tuple[Ints, Ints]:
    """How many characters the sentences of such rows have, the first ones and the second ones."""
    texts = [table.select(["sentence1", "sentence2"]) for table in source.splits.values()]
    rows = pa.concat_tables(texts)
    sample = rows.take(np.unique(np.linspace(0, rows.num_rows - 1, SAMPLED_ROWS).astype(np.int64)))
    first, second = (pc.fill_null(pc.utf8_length(text), 0).to_numpy() for text in sample.columns)
    return first, second


def layer_bytes(
    signals: Sequence[LayerSignal], source: Source, length_R: Ints, num_variants: int
) -> dict[str, tuple[int, int]]:
    """About how many bytes each signal takes a row, and of all rows that it is of, by what it is called.

    Args:
        signals: what is to be stored.
        source: the rows.
        length_R: lengths of some of them.
        num_variants: how many variants there are in all.
    """
    own = sum(source.own(split).num_rows for split in source.splits)
    every = sum(table.num_rows for table in source.splits.values()) + num_variants
    sizes = {}
    for signal in signals:
        a_row = len(signal.layers) * signal.num_bytes(length_R) / max(1, len(length_R))
        sizes[str(signal)] = (round(a_row), round(a_row * (own if signal.of == "originals" else every)))
    return sizes
