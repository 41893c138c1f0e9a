"""Checks the files of what a teacher's layers say: bytes, frame, keys and lengths as those of the examples, numbers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError, raise_all
from pipeline.logit_set.file_check import check_bytes, frame_problem
from pipeline.logit_set.record import TOKENIZER_FILE, SetRecord
from pipeline.logit_set.record_parts import Shard
from pipeline.logit_set.shard_file import Footer, footer_of
from pipeline.logit_set.signals import LayerSignal
from pipeline.logit_set.tokens import read_groups
from pipeline.text.tokenizer import load_tokenizer

EXAMPLE_COLUMNS = ["source_row", "variant", "origin", "ids1", "ids2"]


def layer_footer(record: SetRecord, signal: LayerSignal, shard: Shard) -> Footer:
    """What the footer of a signal's file says: the rows that it stands for, as theirs, and how the signal is stored."""
    return footer_of(record, shard) | {"signal": signal.name, "stored": signal.stored_as()}


def check_layers(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError, listing what is wrong, unless what layers say is what the record says of it.

    While the set's rows are being verified, files that are still to be written are not asked for.
    """
    if not record.signals.of_layers:
        return
    specials = load_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256).num_special_tokens_to_add(record.is_pair)
    problems = []
    for signal in record.signals.of_layers:
        for shard, examples in zip(signal.shards, record.shards, strict=True):
            if record.state == "complete" and shard.sha256 is None:
                continue
            problem = layer_file_problem(root, record, signal, shard)
            if problem is None:
                expected = expected_rows(root / examples.path, signal, specials)
                problem = _rows_problem(root / shard.path, signal, expected)
            problems += [f"{shard.path}: {problem}"] if problem else []
    raise_all(IntegrityError, "what is said by layers is not sound", problems)


def layer_file_problem(root: Path, record: SetRecord, signal: LayerSignal, shard: Shard) -> str | None:
    """What is wrong with a signal's file, but for its rows; None if nothing is."""
    problems = check_bytes(root, shard)
    if problems:
        return problems[0].removeprefix(f"{shard.path}: ")
    try:
        return frame_problem(root / shard.path, shard, signal.file_schema(), layer_footer(record, signal, shard))
    except IntegrityError as error:
        return str(error)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"


def expected_rows(examples: Path, signal: LayerSignal, specials: int) -> pa.Table:
    """Key and length of the rows of a shard of examples that a signal is of: ``source_row``, ``variant``, ``length``.

    Args:
        examples: the shard's file.
        signal: of layers.
        specials: how many special tokens the teacher reads beside a row's own.

    Raises:
        IntegrityError: if the shard is missing or lacks a column.
    """
    try:
        rows = pq.read_table(examples, columns=EXAMPLE_COLUMNS, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{examples}: cannot be read: {error}") from error
    if signal.of == "originals":
        rows = rows.filter(pc.equal(rows.column("origin"), "original"))
    lengths = [pc.fill_null(pc.list_value_length(rows.column(name)), 0).to_numpy() for name in ("ids1", "ids2")]
    length_R = np.add(*lengths).astype(np.int64) + specials
    return rows.select(["source_row", "variant"]).append_column("length", pa.array(length_R))


def _rows_problem(path: Path, signal: LayerSignal, expected: pa.Table) -> str | None:
    start = 0
    try:
        for rows in read_groups(path):
            wanted = expected.slice(start, rows.num_rows)
            for name in ("source_row", "variant", "length"):
                if not np.array_equal(rows.column(name).to_numpy(), wanted.column(name).to_numpy()):
                    return f"its column {name} is not that of the rows in examples/ that it is of"
            problem = signal.rows_problem(rows)
            if problem:
                return problem
            start += rows.num_rows
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        return f"cannot be read: {error}"
    return None if start == expected.num_rows else f"{start:,} rows, but examples/ has {expected.num_rows:,} of them"
