"""What may stand at each replaceable word of some sentences: found once, kept in files, small in memory.

Shapes: S replaceable words ("sites") of all sentences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Ragged
from pipeline.errors import IntegrityError
from teacher.augment.words import Span

SCHEMA = pa.schema(
    [
        pa.field("start", pa.list_(pa.int32()), nullable=False),
        pa.field("stop", pa.list_(pa.int32()), nullable=False),
        pa.field("candidates", pa.list_(pa.list_(pa.string())), nullable=False),
    ]
)


class Site(NamedTuple):
    """A replaceable word of a sentence, and the words to choose from; never none."""

    span: Span
    candidates: list[str]


@dataclass(frozen=True)
class Sites:
    """The sites of sentences, by the sentences' numbers.

    Attributes:
        start: per sentence, where its sites start, in characters.
        stop: per sentence, where they stop.
        choices: per site, the numbers of its candidates in ``words``.
        words: every candidate once.
    """

    start: Ragged
    stop: Ragged
    choices: Ragged
    words: list[str]


def table_of_sites(sites: Sequence[Sequence[Site]]) -> pa.Table:
    """The sites of some sentences as a table, a row per sentence."""
    columns = {
        "start": [[site.span[0] for site in row] for row in sites],
        "stop": [[site.span[1] for site in row] for row in sites],
        "candidates": [[site.candidates for site in row] for row in sites],
    }
    return pa.table(columns, schema=SCHEMA)


def read_sites(paths: Iterable[Path]) -> Sites:
    """Reads files of such tables, one after the other; candidates become small numbers at once.

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
        raise IntegrityError(f"{path}: damaged: {error}; remove it and repeat the command") from error


def _offsets(lengths: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
