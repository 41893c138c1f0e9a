"""Checks a set's files against its record: size and hash, footer, columns, rows, and the files of layers.

Shapes: R rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pipeline.errors import IntegrityError, raise_all
from pipeline.files import write_text
from pipeline.sets.card import CARD_FILE, card_text
from pipeline.sets.files import footer_of, found_problem, shard_problem
from pipeline.sets.kinds import kind_of
from pipeline.sets.layers import check_layers, layer_file_problems
from pipeline.sets.open import find_set, load_set_tokenizer
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.set_settings import VerifySettings
from pipeline.sets.token_vectors import check_token_vectors


def verify(settings: VerifySettings) -> SetRecord:
    """Checks every claim of a set's record against its files, and writes its card if that is missing.

    Raises:
        IntegrityError: listing every problem, or if the set was never finished.
    """
    root = find_set(settings.set_or_run, settings.store)
    record = read_set_record(root)
    # The teacher has not been scored on gold labels.
    if record.state != "verified":
        raise IntegrityError(f"{root}: not finished yet. Repeat its command to finish it:\n  {record.command}")
    try:
        load_set_tokenizer(root, record.tokenizer)
        verify_shards(root, record)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error}\nTo restore missing or damaged files, use `distill pull` or repeat the set's command:\n"
            f"  {record.command}"
        ) from error
    if not (root / CARD_FILE).exists():
        write_text(root / CARD_FILE, card_text(record))
    return record


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
