"""Checks a set's files against its record: size and hash, footer, columns, rows, and the files of layers.

Shapes: R rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline.errors import IntegrityError, raise_all
from pipeline.sets.files import check_shard
from pipeline.sets.kinds import kind_of
from pipeline.sets.layers import check_layers, layer_file_problems
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.row_kind import RowsCheck
from pipeline.sets.token_vectors import check_token_vectors

EXAMPLE_COLUMNS = ["source_row", "variant", "origin", "ids1", "ids2"]


def verify_shards(root: Path, record: SetRecord) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys, texts, and finite numbers.

    Raises:
        IntegrityError: listing every problem.
    """
    problems, rows = [], kind_of(record).check(record)
    for shard in record.shards:
        problems += _problems(root, record, shard, rows)
    strangers = sorted({shard.split for shard in record.shards} - record.splits.keys())
    problems += [f"split {split!r}: has shards, but is not among the splits" for split in strangers]
    for split, described in record.splits.items():
        ranges = [(shard.start, shard.stop) for shard in record.shards_of(split)]
        if not ranges or ranges != _chain(ranges, described.rows):
            problems.append(f"split {split!r}: its shards do not cover the rows 0 to {described.rows:,} once")
    # A foreign file in the folder would be loaded with the set although no check has read it.
    problems += _strangers(root, record)
    checks = [
        partial(signal.check_files, root)
        for signal in record.signals.stored
        # Signals outside the files of the rows are written after this check.
        if signal.is_in_rows or record.state != "complete"
    ]
    problems += _failures([*checks, partial(check_token_vectors, root, record)])
    # Layers are compared with the rows, so the rows have to be sound first.
    problems = problems or _failures([partial(check_layers, root, record)])
    raise_all(IntegrityError, f"{root}: the logit set is damaged", problems or rows.split_problems())


def _failures(checks: Sequence[Callable[[], None]]) -> list[str]:
    failures = []
    for check in checks:
        try:
            check()
        except IntegrityError as error:
            failures.append(str(error))
    return failures


def require_signal_files(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError, listing every problem, unless other files of signals match the record."""
    layers = record.signals.layer_signals
    checks = [partial(signal.check_files, root) for signal in record.signals.stored if signal not in layers]
    problems = _failures([*checks, partial(check_token_vectors, root, record)])
    raise_all(IntegrityError, f"{root}: cannot be used", [*problems, *layer_file_problems(root, record, layers)])


def _problems(root: Path, record: SetRecord, shard: Shard, rows: RowsCheck) -> list[str]:
    problems = check_shard(root, record, shard)
    if problems:
        return problems
    path = root / shard.path
    try:
        problem = rows.shard_problem(shard, path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error}"
    return [f"{shard.path}: {problem}"] if problem else []


def _strangers(root: Path, record: SetRecord) -> list[str]:
    """Returns extra files that `load_dataset` or a query over ``*.parquet`` would read as part of the set."""
    shards = [*record.shards, *(shard for signal in record.signals.layer_signals for shard in signal.shards)]
    known = {shard.path for shard in shards}
    folders = {Path(path).parent for path in known}
    existing = {str(path.relative_to(root)) for folder in folders for path in (root / folder).glob("*.parquet")}
    return [f"{path}: not a file of the set. Remove it" for path in sorted(existing - known)]


def _chain(ranges: list[tuple[int, int]], num_rows: int) -> list[tuple[int, int]]:
    """Returns the ranges with each start replaced by the required one, ending at ``num_rows``."""
    stops = [stop for _, stop in ranges]
    return list(zip([0, *stops[:-1]], [*stops[:-1], num_rows], strict=True))
