"""Checks a set's files against its record: size and hash, footer, columns, then rows."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline.errors import IntegrityError, raise_all
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import check_bytes, footer_of, frame_problem
from pipeline.sets.token_vectors import check_token_vectors
from pipeline.sets.verify_layers import check_layers, layer_file_problems

Key = tuple[int, ...]  # of a row, without its split


class RowsCheck:
    """Checks the rows of a set, shard by shard, as far as they are sound."""

    def __init__(self, record: SetRecord) -> None:
        self.record, self._kind = record, record.row_kind

    def begin(self, shard: Shard) -> None:
        """Is called before the first row of a shard."""

    def add(self, shard: Shard, rows: pa.Table) -> None:
        """Adds up sound rows of a shard."""

    def end_problem(self, shard: Shard, num_rows: int) -> str | None:
        """What is wrong with a shard as a whole, once its rows are sound; None if nothing is."""
        return None

    def split_problems(self) -> list[str]:
        """What is wrong with the splits as wholes, once every shard is sound."""
        return []

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """What is wrong inside a shard, up to the first batch of rows that is wrong; None if nothing is."""
        problem = self._kind.file_problem(path)
        if problem:
            return problem
        self.begin(shard)
        num_rows, last = 0, (-1, *(0 for _ in self._kind.keys[2:]))
        for place, rows in self._kind.batches(self.record, path):
            if not rows.num_rows:
                continue
            problem = self._kind.key_problem(self.record, shard, rows, last)
            problem = problem or self._kind.problem(self.record, shard, rows)
            if problem:
                return place + problem
            self.add(shard, rows)
            last = tuple(int(key_R[-1]) for key_R in self._kind.key_columns(rows))
            num_rows += rows.num_rows
        if num_rows != shard.rows:
            return f"{num_rows:,} rows, but distill.json says {shard.rows or 0:,}"
        return self.end_problem(shard, num_rows)


def verify_shards(root: Path, record: SetRecord) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys (every source row of a task once), texts, finite numbers.

    Raises:
        IntegrityError: listing everything that is wrong.
    """
    problems, rows = [], record.row_kind.check(record)
    for shard in record.shards:
        problems += _problems(root, record, shard, rows)
    strangers = sorted({shard.split for shard in record.shards} - record.splits.keys())
    problems += [f"split {split!r}: has shards, but is not among the splits" for split in strangers]
    for split, described in record.splits.items():
        ranges = [(shard.start, shard.stop) for shard in record.shards_of(split)]
        if not ranges or ranges != _chain(ranges, described.rows):
            problems.append(f"split {split!r}: its shards do not cover the rows 0 to {described.rows:,} once")
    problems += _strangers(root, record)
    checks = [
        partial(signal.check_files, root)
        for signal in record.signals.stored
        if signal.is_in_rows or record.state != "complete"  # what comes after the rows comes back after them
    ]
    problems += _failures([*checks, partial(check_token_vectors, root, record)])
    problems = problems or _failures([partial(check_layers, root, record)])  # which compares them with the rows
    raise_all(IntegrityError, f"{root}: not a sound logit set", problems or rows.split_problems())


def _failures(checks: Sequence[Callable[[], None]]) -> list[str]:
    failures = []
    for check in checks:
        try:
            check()
        except IntegrityError as error:
            failures.append(str(error))
    return failures


def require_shards(root: Path, record: SetRecord, shards: Sequence[Shard]) -> None:
    """Raises IntegrityError, listing every problem, unless shards are those recorded, with a set's columns."""
    problems = [problem for shard in shards for problem in check_shard(root, record, shard)]
    raise_all(IntegrityError, f"{root}: cannot be used", problems)


def require_signal_files(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError, listing every problem, unless what signals have beside the rows is what was recorded."""
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


def check_shard(root: Path, record: SetRecord, shard: Shard) -> list[str]:
    """Says what is wrong with a shard's bytes, or else with its frame: footer, columns and numbers of rows."""
    problems = check_bytes(root, shard)
    if problems:
        return problems
    try:
        problem = frame_problem(root / shard.path, shard, record.arrow_schema(), footer_of(record, shard))
    except IntegrityError as error:
        return [str(error)]
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error}"
    return [f"{shard.path}: {problem}"] if problem else []


def _strangers(root: Path, record: SetRecord) -> list[str]:
    """Files that `load_dataset` or a query over ``*.parquet`` would take for the set's."""
    shards = [*record.shards, *(shard for signal in record.signals.layer_signals for shard in signal.shards)]
    known = {shard.path for shard in shards}
    folders = {Path(path).parent for path in known}
    existing = {str(path.relative_to(root)) for folder in folders for path in (root / folder).glob("*.parquet")}
    return [f"{path}: not a file of the set; remove it" for path in sorted(existing - known)]


def _chain(ranges: list[tuple[int, int]], num_rows: int) -> list[tuple[int, int]]:
    """The ranges with each start replaced by what it must be, ending at ``num_rows``."""
    stops = [stop for _, stop in ranges]
    return list(zip([0, *stops[:-1]], [*stops[:-1], num_rows], strict=True))
