"""Checks the rows of a set of sentences, a row group at a time."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.sentences import SENTENCE_KEYS
from pipeline.sets.tokens import read_groups

Key = tuple[int, int]


class SentencesCheck:
    """Checks the sentences of a set, shard by shard."""

    def __init__(self, record: SetRecord) -> None:
        self._record = record

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Says what is wrong inside a shard; reads a row group at a time and stops at the first that is wrong."""
        last: Key = (-1, 0)
        num_rows = 0
        for number, table in enumerate(read_groups(path)):
            if not table.num_rows:
                continue
            problem = group_problem(self._record, table)
            if not problem:
                keys = list(zip(*(table.column(name).to_pylist() for name in SENTENCE_KEYS[1:]), strict=True))
                problem = _key_problem(self._record, shard, [last, *keys])
                last = keys[-1]
            if problem:
                return f"row group {number}: {problem}"
            num_rows += table.num_rows
        if num_rows != shard.rows:
            return f"{num_rows:,} rows, but distill.json says {shard.rows}"
        expected = (shard.stop - shard.start) * (1 + self._record.is_pair)
        if self._record.task is not None and num_rows != expected:
            return f"{num_rows:,} sentences, but the source rows {shard.start:,} to {shard.stop:,} have {expected:,}"
        return None

    def split_problems(self) -> list[str]:
        """None: a document may give any number of sentences, and those of a task are counted by shard."""
        return []


def group_problem(record: SetRecord, table: pa.Table) -> str | None:
    """Says what is wrong inside a row group, apart from its keys; nothing can be trained from it then."""
    ids = table.column("ids").combine_chunks()
    if ids.null_count or ids.flatten().null_count:
        return "ids is null somewhere"
    if (pc.max(pc.list_value_length(ids)).as_py() or 0) > record.max_seq_length:
        return f"a sentence has more than {record.max_seq_length} tokens"
    if (pc.max(ids.flatten()).as_py() or 0) >= record.tokenizer.vocabulary_size:
        return "an id is beyond the tokenizer's vocabulary"
    problems = (signal.problem(table) for signal in record.signals.stored)
    return next((problem for problem in problems if problem), None)


def _key_problem(record: SetRecord, shard: Shard, keys: list[Key]) -> str | None:
    if any(a >= b for a, b in pairwise(keys)):
        return "its keys do not ascend, so that one may be there twice"
    if keys[1][0] < shard.start or keys[-1][0] >= shard.stop:
        return f"holds source rows outside {shard.start:,} to {shard.stop:,}"
    most = int(record.is_pair)
    if record.task is not None and any(not 0 <= piece <= most for _, piece in keys[1:]):
        return f"a row of the task has a sentence beyond number {most}"
    return None
