"""Checks a set's files against its record: size and hash, footer, columns, rows, and the files of layers.

Shapes: R rows.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Ints
from pipeline.errors import IntegrityError, raise_all
from pipeline.parquet import Footer, read_metadata
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import check_bytes, footer_of, frame_problem, read_groups
from pipeline.sets.signals import LayerSignal
from pipeline.sets.token_vectors import check_token_vectors
from pipeline.text.tokenizer import load_tokenizer
from pipeline.training.run_record import TOKENIZER_FILE

Key = tuple[int, ...]  # key of a row, without its split
EXAMPLE_COLUMNS = ["source_row", "variant", "origin", "ids1", "ids2"]


class RowsCheck:
    """Checks the rows of a set, shard by shard."""

    def __init__(self, record: SetRecord) -> None:
        self.record, self._kind = record, record.row_kind

    def begin(self, shard: Shard) -> None:
        """Starts a shard, before its first row."""

    def add(self, shard: Shard, rows: pa.Table) -> None:
        """Adds up sound rows of a shard."""

    def end_problem(self, shard: Shard, num_rows: int) -> str | None:
        """Returns the problem of a shard as a whole, once its rows are sound, or None."""
        return None

    def split_problems(self) -> list[str]:
        """Returns the problems of whole splits, once every shard is sound."""
        return []

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Returns the problem of the first wrong batch of rows in a shard, or None."""
        problem = self._kind.file_problem(path)
        if problem:
            return problem
        self.begin(shard)
        # Source rows start at 0, so -1 is below every possible key.
        num_rows, last = 0, (-1, *(0 for _ in self._kind.keys[2:]))
        for place, rows in self._kind.batches(self.record, path):
            if not rows.num_rows:
                continue
            problem = self._kind.key_problem(self.record, shard, rows, last)
            # Keys are checked first: later checks and messages rely on them to name a row.
            problem = problem or self._kind.problem(self.record, shard, rows)
            if problem:
                return place + problem
            self.add(shard, rows)
            last = tuple(int(key_R[-1]) for key_R in self._kind.key_columns(rows))
            num_rows += rows.num_rows
        # The number in the footer may be false, so the rows that were read are counted.
        if num_rows != shard.rows:
            return f"{num_rows:,} rows, but distill.json has {shard.rows or 0:,}"
        return self.end_problem(shard, num_rows)


def verify_shards(root: Path, record: SetRecord) -> None:
    """Checks every shard: bytes, fingerprint, columns, keys, texts, and finite numbers.

    Raises:
        IntegrityError: listing every problem.
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


def require_shards(root: Path, record: SetRecord, shards: Sequence[Shard]) -> None:
    """Raises IntegrityError, listing every problem, unless shards match the record and have a set's columns."""
    problems = [problem for shard in shards for problem in check_shard(root, record, shard)]
    raise_all(IntegrityError, f"{root}: cannot be used", problems)


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


def check_shard(root: Path, record: SetRecord, shard: Shard) -> list[str]:
    """Returns the problem of a shard's bytes, or of its footer, columns and number of rows."""
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


def layer_footer(record: SetRecord, signal: LayerSignal, shard: Shard) -> Footer:
    """Returns the content of the footer of a signal's file: its rows, and the encoding of the signal."""
    return footer_of(record, shard) | {"signal": signal.name, "stored": signal.stored_as()}


def check_layers(root: Path, record: SetRecord) -> None:
    """Raises IntegrityError, listing what is wrong, unless the layer outputs match the record.

    While the set's rows are being verified, files may be missing because they are written later.
    """
    if not record.signals.layer_signals:
        return
    specials = num_specials(root, record)
    problems = []
    for signal in record.signals.layer_signals:
        for number, shard in enumerate(signal.shards):
            if record.state == "complete" and shard.sha256 is None:
                continue
            try:
                for _ in sound_rows(root, record, signal, number, specials):
                    pass
            except IntegrityError as error:
                problems.append(str(error).removeprefix(f"{root}/"))
    raise_all(IntegrityError, "the layer outputs are damaged", problems)


def layer_file_problems(root: Path, record: SetRecord, signals: Iterable[LayerSignal]) -> list[str]:
    """Returns the problems of the files and bases of signals, without their rows."""
    problems = []
    for signal in signals:
        try:
            signal.check_files(root)
        except IntegrityError as error:
            problems.append(str(error).removeprefix(f"{root}/"))
        for shard in signal.shards:
            problem = layer_file_problem(root, record, signal, shard)
            problems += [f"{shard.path}: {problem}"] if problem else []
    return problems


def num_specials(root: Path, record: SetRecord) -> int:
    """Returns how many special tokens the teacher of a set adds to a row."""
    tokenizer = load_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256)
    return int(tokenizer.num_special_tokens_to_add(record.is_pair))


def sound_rows(
    root: Path,
    record: SetRecord,
    signal: LayerSignal,
    number: int,
    specials: int,
    layers: tuple[int, ...] = (),
) -> Iterator[pa.Table]:
    """Yields the row groups of a signal's file, each after a check against the record and the examples.

    Before any number is read, their count is compared with the lengths of the examples.

    Args:
        root: the set's folder.
        record: its record.
        signal: the recorded signal of layers.
        number: the number of the file, which is the same for the signal and the set.
        specials: the number of special tokens. See `num_specials`.
        layers: the layers to read. Default: all.

    Raises:
        IntegrityError: at the first problem.
    """
    shard, examples = signal.shards[number], record.shards[number]
    path, wanted = root / shard.path, signal.model_copy(update={"layers": layers or signal.layers})
    _require(path, layer_file_problem(root, record, signal, shard))
    expected = expected_rows(root / examples.path, signal, specials)
    # The footer's counts are compared before any number is read, so that a hostile file cannot fill the memory.
    _require(path, _counts_problem(path, wanted, expected.column("length").to_numpy()))
    start = 0
    groups = read_groups(path, wanted.file_schema().names)
    while (rows := _next(path, groups)) is not None:
        _require(path, _rows_problem(wanted, rows, expected.slice(start, rows.num_rows)))
        start += rows.num_rows
        yield rows


def layer_file_problem(root: Path, record: SetRecord, signal: LayerSignal, shard: Shard) -> str | None:
    """Returns the problem of a signal's file, without its rows, or None."""
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
    """Returns ``source_row``, ``variant`` and ``length`` of the rows with a signal in a shard of examples.

    Args:
        examples: the shard's file.
        signal: the signal of layers.
        specials: how many special tokens the teacher adds to a row.

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


def _counts_problem(path: Path, signal: LayerSignal, length_R: Ints) -> str | None:
    """Returns the problem of the footer's counts of rows and numbers, for rows of these lengths."""
    metadata, start = read_metadata(path), 0
    if metadata.num_rows != len(length_R):
        return f"{metadata.num_rows:,} rows, but examples/ has {len(length_R):,} of them"
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        counted = {column.path_in_schema.split(".")[0]: column.num_values for column in columns}
        sizes = signal.sizes(length_R[start : start + group.num_rows])
        for layer, (end, size_R) in itertools.product(signal.layers, sizes.items()):
            name = f"{signal.name}_{layer}{end}"
            if counted[name] != size_R.sum():
                return f"{name} has {counted[name]:,} numbers, but rows of these lengths have {size_R.sum():,}"
        start += group.num_rows
    return None


def _rows_problem(signal: LayerSignal, rows: pa.Table, expected: pa.Table) -> str | None:
    for name in ("source_row", "variant", "length"):
        if not np.array_equal(rows.column(name).to_numpy(), expected.column(name).to_numpy()):
            return f"its column {name} does not match the rows in examples/"
    return signal.rows_problem(rows)


def _next(path: Path, groups: Iterator[pa.Table]) -> pa.Table | None:
    try:
        return next(groups, None)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error


def _require(path: Path, problem: str | None) -> None:
    if problem:
        raise IntegrityError(f"{path}: {problem}")
