"""Checks a set's files against its record: size and hash, footer, columns, rows, and the files of layers.

Shapes: R rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pipeline.errors import IntegrityError, raise_all
from pipeline.sets.files import footer_of, found_problem, shard_problem
from pipeline.sets.kinds import kind_of
from pipeline.sets.layers import check_layers, layer_file_problems
from pipeline.sets.record import SetRecord
from pipeline.sets.token_vectors import check_token_vectors


def verify_shards(root: Path, record: SetRecord) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys, texts, and finite numbers.

    Raises:
        IntegrityError: listing every problem.
    """
    problems, rows, schema = [], kind_of(record).check(record), record.arrow_schema()
    for shard in record.shards:
        path, check = root / shard.path, partial(rows.shard_problem, shard, root / shard.path)
        problem = shard_problem(root, shard, schema, footer_of(record, shard)) or found_problem(path, check)
        problems += [f"{shard.path}: {problem}"] if problem else []
    strangers = sorted({shard.split for shard in record.shards} - record.splits.keys())
    problems += [f"split {split!r}: has shards, but is not among the splits" for split in strangers]
    for split, described in record.splits.items():
        ranges = [(shard.start, shard.stop) for shard in record.shards_of(split)]
        # Each range has to begin where the one before ends, and the last one at the end of the split.
        stops = [stop for _, stop in ranges[:-1]]
        if not ranges or ranges != list(zip([0, *stops], [*stops, described.rows], strict=True)):
            problems.append(f"split {split!r}: its shards do not cover the rows 0 to {described.rows:,} once")
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


def _strangers(root: Path, record: SetRecord) -> list[str]:
    """Returns foreign files that `load_dataset` or a query over ``*.parquet`` would read although no check has."""
    shards = [*record.shards, *(shard for signal in record.signals.layer_signals for shard in signal.shards)]
    known = {shard.path for shard in shards}
    folders = {Path(path).parent for path in known}
    existing = {str(path.relative_to(root)) for folder in folders for path in (root / folder).glob("*.parquet")}
    return [f"{path}: not a file of the set. Remove it" for path in sorted(existing - known)]
