from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import QueryError
from pipeline.sql.gate import add_macros, create_view, open_database, open_files, select

ATTACKS = [
    "copy (select 1) to '{shard}'",
    "copy (select 1) to '{shard}' (use_tmp_file false)",
    "copy (select 1) to '{folder}/new.parquet'",
    "explain analyze copy (select 1) to '{shard}' (use_tmp_file false)",
    "explain select 1",
    "with t as (copy (select 1) to '{shard}' (use_tmp_file false)) select 1",
    "with t as materialized (copy (select 1) to '{shard}' (use_tmp_file false)) select * from t",
    "select * from (with t as (copy (select 1) to '{shard}' (use_tmp_file false)) select 1)",
    "with t as (insert into v values (1)) select 1",
    "with t as (delete from v returning *) select * from t",
    "select * from query('copy (select 1) to ''{shard}'' (use_tmp_file false)')",
    "select * from '/etc/passwd'",
    "select * from read_csv('/etc/passwd')",
    "select * from read_text('/etc/passwd')",
    "select * from read_text('{folder}/../secret.txt')",
    "select * from read_parquet('{folder}/other.parquet')",
    "select * from read_parquet('{folder}/link.parquet')",
    "select * from '{folder}/*.parquet'",
    "select * from glob('/etc/*')",
    "select * from sniff_csv('/etc/passwd')",
    "select * from read_csv('http://localhost:1/x.csv')",
    "select getenv('HOME')",
    "select * from enable_logging(storage_path='{folder}/log')",
    "select * from enable_profiling(save_location='{folder}/profile.json')",
    "attach '{folder}/new.duckdb'",
    "attach ':memory:' as m",
    "create temp table t as select 1",
    "create table t as select 1",
    "create macro f(x) as x",
    "drop view v",
    "install httpfs",
    "load httpfs",
    "set enable_external_access=true",
    "set allowed_paths=['/etc/passwd']",
    "set lock_configuration=false",
    "pragma threads=1",
    "reset threads",
    "export database '{folder}/out'",
    "import database '{folder}'",
    "checkpoint",
    "call pragma_version()",
    "prepare p as select 1",
    "begin",
    "select 1; select 2",
    "select 1; copy (select 1) to '{shard}' (use_tmp_file false)",
    "copy (select 1) to '{shard}' (use_tmp_file false); select 1",
    "",
    "-- nothing",
    "selct 1",
    "select nothing from v",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One file that may be read, and others that may not."""
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    pq.write_table(pa.table({"x": [1, 2, 3]}), root / "shard.parquet")
    pq.write_table(pa.table({"x": ["secret"]}), root / "other.parquet")
    (root / "link.parquet").symlink_to(root / "other.parquet")
    with duckdb.connect(str(root / "catalog.duckdb")) as connection:
        add_macros(connection)
        create_view(connection, "v", [root / "shard.parquet"])
    return root


@pytest.fixture(params=["files", "database"])
def connection(request: pytest.FixtureRequest, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    shard = folder / "shard.parquet"
    opened = (
        open_files({"v": [shard]}) if request.param == "files" else open_database(folder / "catalog.duckdb", [shard])
    )
    with opened as connection:
        yield connection


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select sum(x) from v", [(6,)]),
        ("from v", [(1,), (2,), (3,)]),
        ("with t as (select x + 1 as y from v) select max(y) from t -- a comment", [(4,)]),
        ("select x from v where x > 1 order by x desc;", [(3,), (2,)]),
        ("(select 1) union all (select 2)", [(1,), (2,)]),
        ("values (1)", [(1,)]),
        ("select argmax([1.0, 3.0, 2.0])", [(1,)]),
    ],
)
def test_honest_queries_are_answered(connection: duckdb.DuckDBPyConnection, query: str, rows: list[object]) -> None:
    assert select(connection, query).fetchall() == rows


@pytest.mark.parametrize("query", ATTACKS)
def test_everything_else_is_refused(connection: duckdb.DuckDBPyConnection, folder: Path, query: str) -> None:
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    try:
        with pytest.raises((QueryError, duckdb.Error)):
            select(connection, query.format(folder=folder, shard=folder / "shard.parquet")).to_arrow_table()
    finally:
        assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == before


def test_refusal_says_what_the_query_is(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="only one SELECT is allowed, but this is: SELECT, DROP"):
        select(connection, "select 1; drop view v")
    with pytest.raises(QueryError, match="but this is: nothing"):
        select(connection, " ")
    with pytest.raises(QueryError, match=r"(?s)the query failed: .*xx.*Candidate bindings"):
        select(connection, "select xx from v")


def test_view_over_several_files_with_odd_names(tmp_path: Path) -> None:
    paths = [tmp_path / "it's [1].parquet", tmp_path / "* ?.parquet"]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"x": [number]}), path)
    with open_files({"v": paths}) as connection:
        assert select(connection, "select x from v order by x").fetchall() == [(0,), (1,)]
