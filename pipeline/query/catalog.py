"""The DuckDB index over a store: a local cache that can be rebuilt from the sets at any time, and is never shared.

It contains the tables ``sets``, ``shards``, ``teachers`` and ``vocabulary``, and the macros. There is a view per
finished set and per file of token vectors, and ``examples`` over all sets of examples. Sets of tokens have a second
view in words, and sets of words one by word. One process builds the catalog in a temporary file and starts from the
previous catalog: sets with an unchanged record are not read again. Commands that write sets never touch it.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from pipeline import console
from pipeline.errors import DataError, IntegrityError
from pipeline.files import is_plain, is_unwritable, write_alone, write_error
from pipeline.parquet import read_metadata
from pipeline.sets.file_columns import FILE
from pipeline.sets.kinds import SETS, kind_of
from pipeline.sets.open import load_set_tokenizer
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record
from pipeline.sets.record_parts import SET_NAME
from pipeline.sets.row_kind import SPLIT_ROWS, WITH_FILE_COLUMNS, View
from pipeline.sets.signals.side_files import VOCABULARY_FILE, columns_of
from pipeline.sql.database import add_macros, connect, disk_error, macros, token_vectors_view_name, view_name
from pipeline.sql.read_only_query import open_database, parquet

CATALOG_FILE = "catalog.duckdb"
States = dict[str, str]  # of sets, by the names of their folders
# The state of each set, and whether the set was sound and is in the catalog.
Known = dict[str, tuple[str, bool]]

TABLE_NAMES = {"sets", "shards", "teachers", "vocabulary", "catalog_state", "set_states"}
TABLES = """
create table sets ("set" varchar, "view" varchar, task varchar, corpus varchar, codec varchar, state varchar,
    teacher varchar, labels varchar[], "rows" bigint, bytes bigint, precision varchar, max_seq_length int, scores json,
    source varchar, notes varchar[], created timestamp with time zone, fingerprint varchar, path varchar);
create table shards ("set" varchar, split varchar, "index" int, start_row bigint, stop_row bigint, "rows" bigint,
    bytes bigint, sha256 varchar, path varchar);
create table teachers (weights_sha256 varchar, answers_sha256 varchar, teacher varchar, revision varchar,
    num_parameters bigint, labels varchar[], sets varchar[]);
create table vocabulary (tokenizer varchar, id bigint, token varchar);
create table catalog_state (statements varchar);
create table set_states ("set" varchar, state varchar, is_there boolean, views varchar[]);
-- the name of a class, by its number; the set by its name or its view: label_name('mnli', label)
create macro label_name(name, class) as (
    select any_value(labels)[class + 1] from sets where "set" = name or "view" = name
);
"""

VOCABULARY_VIEW = """
create view "{name}" as
select id, token, count, list_transform(vector, lambda bits: half(bits)::float) as vector from {file}
"""


def build_catalog(store: Path) -> list[SetRecord]:
    """Indexes every set of a store anew.

    Returns: The records of the indexed sets. Damaged sets are left out with a warning.

    Raises:
        DataError: if the store does not exist or two sets would have the same view.
    """
    if not store.is_dir():
        raise DataError(f"store {store}: no such folder. Write a set with `distill teacher-dump` first.")
    return _write(store, store / CATALOG_FILE, from_before=False)


@contextmanager
def open_catalog(store: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens the store's catalog for reading, after updating it for new, removed and changed sets."""
    roots = (path.parent for path in store.glob(f"*/{FILE_NAME}") if re.match(SET_NAME, path.parent.name))
    files = (path for root in roots for path in root.glob("*/*.parquet"))
    # A link in a set from elsewhere could point at any file of this machine, so links are not readable.
    readable = sorted(path for path in files if is_plain(path))
    with _current(store) as path, open_database(path, readable) as connection:
        yield connection


@contextmanager
def _current(store: Path) -> Iterator[Path]:
    """Yields the file of an up-to-date catalog: that of the store, or a temporary one if the store is read-only."""
    path = store / CATALOG_FILE
    # Comparing modification times and sizes of the records is cheap enough to do before every query.
    known = _known_states(path)
    try:
        if not known:
            build_catalog(store)
        elif {name: state for name, (state, _) in known.items()} != _states(store):
            _write(store, path, from_before=True)
    except DataError as error:
        if not is_unwritable(error):
            raise
    else:
        yield path
        return
    # The store may belong to another user or be a mounted snapshot. Reading it must not depend on a file that only
    # saves time.
    with TemporaryDirectory(prefix="distill-catalog-") as folder:
        path = Path(folder) / CATALOG_FILE
        console.note(f"{store}: cannot be written, so its catalog is made again for each query")
        _write(store, path, from_before=bool(known))
        yield path


def _read_sets(store: Path, kept: Set[str]) -> list[tuple[Path, SetRecord]]:
    """Returns the records of the sets. The files of unchanged sets are not checked again."""
    sets = []
    for path in sorted(store.glob(f"*/{FILE_NAME}")):
        try:
            sets.append((path.parent, _readable_set(path.parent, path.parent.name in kept)))
        except IntegrityError as error:
            console.warn(f"left out of the catalog: {error}")
    views: dict[str, Path] = {}
    for root, record in sets:
        for name in (view.name for view in _views(root, record)):
            if name in TABLE_NAMES | _common_views():
                raise DataError(f"{root}: its view would be the table {name!r} of the catalog. Rename the folder.")
            other = views.setdefault(name, root)
            if other != root:
                raise DataError(f"{other} and {root} would both be the view {name!r}. Rename one folder.")
    return sets


def _views(root: Path, record: SetRecord) -> list[View]:
    """Returns the views of a set: those of its rows, and that of its token vectors."""
    views = kind_of(record).views(root, record)
    if record.signals.token_vectors:
        name, file = token_vectors_view_name(root.name), parquet([root / VOCABULARY_FILE])
        views.append(View(name, VOCABULARY_VIEW.format(name=name, file=file)))
    return views


def _common_views() -> set[str]:
    """The names of the views on all sets of a kind of rows."""
    return {kind for kind, one in SETS.items() if one.row_kind.has_common_view}


def _readable_set(root: Path, is_kept: bool) -> SetRecord:
    """Returns the record of a set after checking that DuckDB can make a view, for which DuckDB opens the first file."""
    if not re.match(SET_NAME, root.name):  # in a path DuckDB interprets `*` as a pattern and `key=value` as a column
        raise IntegrityError(
            f"{str(root)!a}: the name of a set's folder may only contain letters, digits, dots, underscores and "
            "hyphens. Rename it."
        )
    record = read_set_record(root)
    if record.state != "staged" and not is_kept:
        _check_columns(root, record)
    return record


def _check_columns(root: Path, record: SetRecord) -> None:
    """Checks that the views of a set can be made, and that no file is a pipe, which would block a query."""
    expected = record.arrow_schema()
    if any(view.needs_vocabulary for view in _views(root, record)):
        load_set_tokenizer(root, record.tokenizer)
    schemas = {shard.path: expected for shard in record.shards}
    if record.signals.token_vectors:
        schemas[VOCABULARY_FILE] = columns_of(record.signals.token_vectors.width)
    for path, columns in schemas.items():
        try:
            schema = read_metadata(root / path).schema.to_arrow_schema().remove_metadata()
        except pa.ArrowException as error:
            raise IntegrityError(f"{root / path}: not a file of a logit set: {error}") from error
        if not schema.equals(columns):
            signals = " and ".join(map(str, record.signals.stored))
            raise IntegrityError(f"{root / path}: its columns are not those of {signals}")


def _write(store: Path, catalog: Path, from_before: bool) -> list[SetRecord]:
    """Writes the catalog, from scratch or from the valid part of the previous one. Returns the records."""
    sets: list[tuple[Path, SetRecord]] = []

    def write(path: Path) -> None:
        if from_before:
            shutil.copyfile(store / CATALOG_FILE, path)
        # Read from this copy, because another process may have replaced the catalog meanwhile.
        known = _known_states(path)
        if not known:
            path.unlink(missing_ok=True)
        # The states are read before the sets: a set that changes in between looks outdated next time and is read again.
        states = _states(store)
        kept = {name for name, (state, is_there) in known.items() if is_there and states.get(name) == state}
        sets.extend(_read_sets(store, kept))
        with _written(path) as connection:
            if known:
                _remove(connection, known.keys() - kept)
            else:
                connection.execute(TABLES)
                add_macros(connection)
                connection.execute("insert into catalog_state values (?)", [_statements()])
            for root, record in sets:
                if root.name not in kept:
                    _add(connection, root, record)
            _add_common(connection, sets, states)

    # Not durable: after a power cut a damaged catalog is simply built again.
    write_alone(catalog, write, durable=False)
    return [record for _, record in sets]


@contextmanager
def _written(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a database for writing. At the end of the block, everything is on the disk.

    Raises:
        DataError: if it cannot be written.
    """
    try:
        with connect(str(path)) as connection:
            yield connection
            # Closing also writes, but does not report a failure such as a full disk.
            connection.execute("checkpoint")
    except duckdb.Error as error:
        catalog, full = path.parent / CATALOG_FILE, disk_error(error)
        if full is not None:
            raise write_error(catalog, full) from error
        reason = str(error).splitlines()[0]
        raise DataError(f"{catalog}: cannot be written: {reason}. Fix this and repeat the command.") from error
    finally:
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)


def _remove(connection: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
    for name in sorted(names):
        row = connection.execute('select views from set_states where "set" = ?', [name]).fetchone()
        for view in row[0] if row else []:
            connection.execute(f'drop view if exists "{view}"')
        for table in ("sets", "shards", "set_states"):
            connection.execute(f'delete from {table} where "set" = ?', [name])  # noqa: S608


def _add(connection: duckdb.DuckDBPyConnection, root: Path, record: SetRecord) -> None:
    connection.execute(f"insert into sets values ({', '.join('?' * 18)})", _set_row(root, record))  # noqa: S608
    rows = [_shard_row(root, record, k) for k in range(len(record.shards))]
    connection.executemany("insert into shards values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    if record.state != "staged":
        for view in _views(root, record):
            if view.needs_vocabulary:
                _add_vocabulary(connection, root, record)
            connection.execute(view.sql)


def _add_common(connection: duckdb.DuckDBPyConnection, sets: list[tuple[Path, SetRecord]], states: States) -> None:
    """Writes what concerns all sets: the view ``examples``, the teachers, and the state of each set."""
    for kind in _common_views():
        connection.execute(f"drop view if exists {kind}")
        finished = [(root.name, record) for root, record in sets if record.state != "staged" and record.kind == kind]
        if finished:
            connection.execute(SETS[kind].row_kind.common_view(finished).sql)
    connection.execute("delete from teachers")
    for row in _teacher_rows(sets):
        connection.execute("insert into teachers values (?, ?, ?, ?, ?, ?, ?)", row)
    views = {
        root.name: [view.name for view in _views(root, record)] for root, record in sets if record.state != "staged"
    }
    connection.execute("delete from set_states")
    there = {root.name for root, _ in sets}
    for name, state in states.items():
        row = [name, state, name in there, views.get(name, [])]
        connection.execute("insert into set_states values (?, ?, ?, ?)", row)


def _add_vocabulary(connection: duckdb.DuckDBPyConnection, root: Path, record: SetRecord) -> None:
    """Adds the vocabulary of a set, unless another set with the same one has added it."""
    # Many sets share a tokenizer, whose 30,000 entries are stored once.
    key = record.tokenizer.sha256
    if not connection.execute("select 1 from vocabulary where tokenizer = ? limit 1", [key]).fetchone():
        words = load_set_tokenizer(root, record.tokenizer).get_vocab(with_added_tokens=True)
        table = pa.table({"tokenizer": [key] * len(words), "id": list(words.values()), "token": list(words)})
        connection.register("words", table)
        connection.execute("insert into vocabulary select * from words")
        connection.unregister("words")


def _set_row(root: Path, m: SetRecord) -> list[Any]:
    scores = json.dumps(m.scores)
    task, corpus = m.task and m.task.name, m.corpus and m.corpus.name
    codecs = [str(signal.codec) for signal in (m.signals.mlm, m.signals.vectors) if signal is not None]
    codec = next(iter(codecs), None)
    labels = list(m.target.names) if m.signals.logits or m.signals.token_logits else None
    return [
        *(root.name, view_name(root.name), task, corpus, codec, m.state, m.teacher.name, labels, m.num_rows),
        *(m.num_bytes, m.precision, m.max_seq_length, scores, m.source, list(m.notes), m.created, m.fingerprint),
        str(root.resolve()),
    ]


def _shard_row(root: Path, record: SetRecord, number: int) -> list[Any]:
    s = record.shards[number]
    return [root.name, s.split, s.index, s.start, s.stop, s.rows, s.bytes, s.sha256, str((root / s.path).resolve())]


def _teacher_rows(sets: list[tuple[Path, SetRecord]]) -> list[list[Any]]:
    rows: dict[str, list[Any]] = {}
    for root, record in sets:
        t = record.teacher
        new = [t.weights_sha256, t.answers_sha256, t.name, t.revision, t.num_parameters, list(t.labels), []]
        rows.setdefault(t.sha256, new)[-1].append(root.name)
    return list(rows.values())


def _statements() -> str:
    """Returns the hash of everything that determines the content of a catalog besides the sets."""
    statements = [TABLES, VOCABULARY_VIEW, SPLIT_ROWS, WITH_FILE_COLUMNS, parquet([])]
    statements += [macro.statement for macro in macros().values()]
    statements += [template for one in SETS.values() for template in one.row_kind.sql_templates]
    return hashlib.sha256(json.dumps(statements).encode()).hexdigest()


def _states(store: Path) -> States:
    """Returns path, time and size of each set's record, and the time of its columns of the user's file.

    Folders with invalid names are left out.
    """
    paths = [path for path in sorted(store.glob(f"*/{FILE_NAME}")) if re.match(SET_NAME, path.parent.name)]
    kept = [path.parent / FILE for path in paths]
    times = [path.lstat().st_mtime_ns if path.is_file() else 0 for path in kept]
    records = [(path, path.lstat(), time) for path, time in zip(paths, times, strict=True)]
    return {
        path.parent.name: f"{path.resolve()!a} {stat.st_mtime_ns} {stat.st_size} {time}" for path, stat, time in records
    }


def _known_states(path: Path) -> Known:
    """Returns the states of the sets in a catalog. Empty if the catalog does not exist or cannot be used."""
    if not path.is_file():
        return {}
    try:
        with connect(str(path), read_only=True) as connection:
            if connection.execute("select statements from catalog_state").fetchall() != [(_statements(),)]:
                return {}
            rows = connection.execute('select "set", state, is_there from set_states').fetchall()
            return {name: (state, is_there) for name, state, is_there in rows}
    except duckdb.Error:
        return {}
