"""Is a shard of tokens what it should be? Shapes: R rows, P positions."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.logit_set.codecs import CODECS
from pipeline.logit_set.manifest import Shard, TokensManifest
from pipeline.logit_set.tokens import MaskedRows, read_groups, split_table

Key = tuple[int, int, int]


def tokens_problems(manifest: TokensManifest, shard: Shard, path: Path) -> list[str]:
    """Says what is wrong inside a shard; reads a row group at a time and stops at the first that is wrong."""
    last: Key = (-1, 0, 0)
    for number, table in enumerate(read_groups(path)):
        rows, columns = split_table(table)
        keys = list(zip(rows.source_row_R.tolist(), rows.piece_R.tolist(), rows.copy_R.tolist(), strict=True))
        problem = (
            _split_problem(shard, table)
            or _key_problem(shard, [last, *keys])
            or _masking_problem(manifest, rows)
            or _column_problem(manifest, rows, columns)
        )
        if problem:
            return [f"{shard.path}, row group {number}: {problem}"]
        last = keys[-1]
    return []


def _split_problem(shard: Shard, table: pa.Table) -> str | None:
    others = set(table.column("split").unique().to_pylist()) - {shard.split}
    return f"holds rows of another split than {shard.split!r}" if others else None


def _key_problem(shard: Shard, keys: list[Key]) -> str | None:
    if any(a >= b for a, b in pairwise(keys)):
        return "its keys do not ascend, so that one may be there twice"
    if keys[1][0] < shard.start or keys[-1][0] >= shard.stop:
        return f"holds documents outside {shard.start:,} to {shard.stop:,}"
    return None


def _masking_problem(manifest: TokensManifest, rows: MaskedRows) -> str | None:
    if not np.array_equal(rows.positions.offsets, rows.targets.offsets):
        return "positions and targets do not go together"
    if not rows.positions.lengths.all():
        return "a row has no masked position"
    if (np.maximum.reduceat(rows.positions.flat, rows.positions.offsets[:-1]) >= rows.ids.lengths).any():
        return "a masked position lies beyond its row's tokens"
    if max(rows.ids.flat.max(), rows.targets.flat.max()) >= manifest.tokenizer.vocabulary_size:
        return "an id is beyond the tokenizer's vocabulary"
    return None


def _column_problem(manifest: TokensManifest, rows: MaskedRows, columns: dict[str, pa.Array]) -> str | None:
    wrong = [name for name, column in columns.items() if len(column) != len(rows.positions.flat) or column.null_count]
    if wrong:
        return f"{wrong[0]} has no entry for some masked position, or one too many"
    return CODECS[manifest.codec.name].problem(manifest.codec, columns)
