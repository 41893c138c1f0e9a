"""Checks the rows of a set of tokens, a row group at a time."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.tokens import TOKEN_KEYS, MaskedRows, masked_rows, read_groups

Key = tuple[int, int, int]


class TokensCheck:
    """Checks the masked sequences of a set, shard by shard."""

    def __init__(self, record: SetRecord) -> None:
        self._record = record

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Says what is wrong inside a shard; reads a row group at a time and stops at the first that is wrong."""
        last: Key = (-1, 0, 0)
        num_rows = 0
        for number, table in enumerate(read_groups(path)):
            if not table.num_rows:
                continue
            problem = group_problem(self._record, table)
            if not problem:
                keys = list(zip(*(table.column(name).to_pylist() for name in TOKEN_KEYS[1:]), strict=True))
                problem = _key_problem(shard, [last, *keys])
                last = keys[-1]
            if problem:
                return f"row group {number}: {problem}"
            num_rows += table.num_rows
        return None if num_rows == shard.rows else f"{num_rows:,} rows, but distill.json says {shard.rows}"

    def split_problems(self) -> list[str]:
        """None: a document may give any number of sequences."""
        return []


def group_problem(record: SetRecord, table: pa.Table) -> str | None:
    """Says what is wrong inside a row group, apart from its keys; nothing can be trained from it then."""
    problem = _list_problem(table)
    if problem or not table.num_rows:
        return problem
    problem = _masking_problem(record, masked_rows(table))
    for signal in record.signals.stored:
        problem = problem or signal.problem(table)
    return problem


def _list_problem(table: pa.Table) -> str | None:
    """Nulls at any depth, or a column that has not one entry for each masked position of each row."""
    masked_R = pc.list_value_length(table.column("positions").combine_chunks())
    for name in table.column_names[table.column_names.index("ids") :]:
        column = table.column(name).combine_chunks()
        if name != "ids" and not pc.list_value_length(column).equals(masked_R):
            return f"{name} has no entry for some masked position of its row, or one too many"
        while pa.types.is_list(column.type) and not column.null_count:
            column = column.flatten()
        if column.null_count:
            return f"{name} is null somewhere"
    return None


def _key_problem(shard: Shard, keys: list[Key]) -> str | None:
    if any(a >= b for a, b in pairwise(keys)):
        return "its keys do not ascend, so that one may be there twice"
    if keys[1][0] < shard.start or keys[-1][0] >= shard.stop:
        return f"holds documents outside {shard.start:,} to {shard.stop:,}"
    return None


def _masking_problem(record: SetRecord, rows: MaskedRows) -> str | None:
    if rows.ids.lengths.max() > record.max_seq_length:
        return f"a row has more than {record.max_seq_length} tokens"
    if not rows.positions.lengths.all():
        return "a row has no masked position"
    if (np.maximum.reduceat(rows.positions.flat, rows.positions.offsets[:-1]) >= rows.ids.lengths).any():
        return "a masked position lies beyond its row's tokens"
    if max(rows.ids.flat.max(), rows.targets.flat.max()) >= record.tokenizer.vocabulary_size:
        return "an id is beyond the tokenizer's vocabulary"
    return None
