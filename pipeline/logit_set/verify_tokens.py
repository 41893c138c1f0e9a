"""Is a shard of tokens what it should be? Shapes: R rows, P positions."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.logit_set.codecs import CODECS, Decoder, read_decoder
from pipeline.logit_set.record import Shard, TokensRecord
from pipeline.logit_set.tokens import DECODER_FILE, KEYS, MaskedRows, read_groups, split_table

Key = tuple[int, int, int]


def tokens_problems(record: TokensRecord, shard: Shard, path: Path) -> list[str]:
    """Says what is wrong inside a shard; reads a row group at a time and stops at the first that is wrong."""
    last: Key = (-1, 0, 0)
    num_rows = 0
    for number, table in enumerate(read_groups(path)):
        if not table.num_rows:
            continue
        problem = group_problem(record, table)
        if not problem:
            keys = list(zip(*(table.column(name).to_pylist() for name in KEYS[1:]), strict=True))
            problem = _key_problem(shard, [last, *keys])
            last = keys[-1]
        if problem:
            return [f"{shard.path}, row group {number}: {problem}"]
        num_rows += table.num_rows
    return [] if num_rows == shard.rows else [f"{shard.path}: {num_rows:,} rows, but distill.json says {shard.rows}"]


def group_problem(record: TokensRecord, table: pa.Table) -> str | None:
    """Says what is wrong inside a row group, apart from its keys; nothing can be trained from it then."""
    problem = _list_problem(table)
    if problem or not table.num_rows:
        return problem
    rows, columns = split_table(table)
    problem = _masking_problem(record, rows)
    return problem or CODECS[record.codec.name].problem(record.codec, columns)


def read_set_decoder(root: Path, record: TokensRecord) -> Decoder | None:
    """Reads the teacher's last layer, where the codec needs it.

    Raises:
        IntegrityError: if the file is missing or was changed, or is no decoder.
    """
    codec, path = record.codec, root / DECODER_FILE
    if codec.hidden_size is None:
        return None
    if not is_plain(path) or sha256(path) != record.decoder_sha256:
        raise IntegrityError(f"{path}: missing, or not the decoder that belongs to this set")
    return read_decoder(path, codec.vocabulary_size, codec.hidden_size)


def _list_problem(table: pa.Table) -> str | None:
    """Nulls at any depth, or a column that has not one entry for each masked position of each row."""
    for name in table.column_names[table.column_names.index("ids") :]:
        column = table.column(name).combine_chunks()
        if name != "ids" and not pc.list_value_length(column).equals(pc.list_value_length(_positions(table))):
            return f"{name} has no entry for some masked position of its row, or one too many"
        while pa.types.is_list(column.type) and not column.null_count:
            column = column.flatten()
        if column.null_count:
            return f"{name} is null somewhere"
    return None


def _positions(table: pa.Table) -> pa.Array:
    return table.column("positions").combine_chunks()


def _key_problem(shard: Shard, keys: list[Key]) -> str | None:
    if any(a >= b for a, b in pairwise(keys)):
        return "its keys do not ascend, so that one may be there twice"
    if keys[1][0] < shard.start or keys[-1][0] >= shard.stop:
        return f"holds documents outside {shard.start:,} to {shard.stop:,}"
    return None


def _masking_problem(record: TokensRecord, rows: MaskedRows) -> str | None:
    if rows.ids.lengths.max() > record.max_seq_length:
        return f"a row has more than {record.max_seq_length} tokens"
    if not rows.positions.lengths.all():
        return "a row has no masked position"
    if (np.maximum.reduceat(rows.positions.flat, rows.positions.offsets[:-1]) >= rows.ids.lengths).any():
        return "a masked position lies beyond its row's tokens"
    if max(rows.ids.flat.max(), rows.targets.flat.max()) >= record.tokenizer.vocabulary_size:
        return "an id is beyond the tokenizer's vocabulary"
    return None
