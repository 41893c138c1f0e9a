"""Everything that is not reading: each attack, by what it meets, and the files as they were."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import QueryError
from pipeline.sql import read_only_query
from pipeline.sql.database import add_macros
from pipeline.sql.read_only_query import create_view, open_database, open_files, select, to_arrow

COPY = "copy (select 1) to '{shard}' (use_tmp_file false)"
CTE = f"with t as materialized ({COPY}) select * from t"
with duckdb.connect() as _connection:
    ((SERIALISED,),) = _connection.execute("select json_serialize_sql(?)", [CTE]).fetchall()

MET: dict[str, list[str]] = {
    ": COPY$": [
        *(COPY, "copy (select 1) to '{shard}'", "copy (select 1) to '{folder}/new.parquet'", "copy v from '{shard}'"),
        *(f"/* */ {COPY}", f"\ufeff{COPY}", f"-- select 1\n{COPY}"),
    ],
    ": .*COPY": [
        *(f"select 1; {COPY}", f"{COPY}; select 1", f"select 1 /*;*/; {COPY}", f"select 1 -- \n; {COPY}"),
        *(f"select '--'; {COPY}", f"select $$;$$; {COPY}"),
    ],
    "SELECT.*: (?!COPY|SELECT, COPY)": [
        *(f"explain analyze {COPY}", f"explain {COPY}", "explain select 1", "explain analyze select 1"),
        *("attach '{folder}/new.duckdb'", "attach ':memory:' as m", "attach or replace '{folder}/x' as v", "detach v"),
        *("create temp table t as select 1", "create table t as select 1", "create macro f(x) as x"),
        *("create or replace view v as select 1", "create sequence s", "create secret s (type http)"),
        *(
            "create type t as enum ('a')",
            "create schema s",
            "create trigger t after insert on v for each row insert into w values (1)",
        ),
        *("insert into v values (1)", "insert into v values (1) returning x", "update v set x = 1", "delete from v"),
        *("truncate v", "merge into v using v as w on true when matched then delete", "drop view v"),
        *("alter view v rename to w", "comment on view v is 'x'", "pivot v on x using count(*)"),
        *("install httpfs", "load httpfs", "load '{folder}/x.duckdb_extension'", "update extensions"),
        *("set enable_external_access=true", "set allowed_paths=['/etc/passwd']", "set lock_configuration=false"),
        *("set global threads=1", "set variable x=1", "reset threads", "pragma threads=1", "pragma enable_profiling"),
        *("export database '{folder}/out'", "import database '{folder}'", "copy from database memory to x"),
        *("checkpoint", "force checkpoint", "vacuum", "analyze", "use memory"),
        *("call pragma_version()", "call checkpoint()", "call enable_logging()"),
        *(f"prepare p as {COPY}", "prepare p as select 1", "execute p", "deallocate p", "begin", "commit", "rollback"),
        *("select 1; select 2", "select 1; drop view v", "", " ", ";", "-- nothing", "/* nothing */"),
    ],
    "(COPY|INSERT|UPDATE|DELETE)_QUERY_NODE": [
        *(CTE, f"with t as ({COPY}) select 1", f"select * from (with t as ({COPY}) select 1)"),
        *(f"select exists (with t as ({COPY}) select 1)", f"select 1 union all (with t as ({COPY}) select 1)"),
        f"with a as (with t as ({COPY}) select 1) from a",
        f"with recursive r(i) as (select 1 union all (with t as ({COPY}) select 1)) from r",
        f"select list_transform([1], lambda x: (with t as ({COPY}) select 1))",
        f"select * from v where x in (with t as ({COPY}) select 1)",
        "with t as (insert into v values (1)) select 1",
        "with t as (update v set x = 1 returning x) from t",
        "with t as (delete from v returning *) select * from t",
    ],
    "A CTE body must be": [
        "with t as (create table z as select 1) select 1",
        "with t as (attach ':memory:' as m) select 1",
        "with t as (set threads=1) select 1",
        "with t as (export database '{folder}/out') from t",
        f"with t as (explain analyze {COPY}) from t",
    ],
    "function '.*'": [
        f"select * from query('{COPY.replace(chr(39), chr(39) * 2)}')",
        f"select * from query($$ {CTE} $$)",
        "select * from query('select 1')",
        "from json_execute_serialized_sql($$SERIALISED$$)",
        "from main.JSON_Execute_Serialized_SQL($$SERIALISED$$)",
        "select (select count(*) from json_execute_serialized_sql($$SERIALISED$$))",
        *("from read_csv('/etc/passwd')", "from read_text('/etc/passwd')", "from read_blob('{shard}')"),
        *("from read_text('{folder}/../secret.txt')", "from read_json('/etc/passwd')", "from sniff_csv('{shard}')"),
        *("select (select content from read_text('/etc/passwd'))", "from v, lateral (from read_text('/etc/passwd'))"),
        *("describe from read_text('/etc/passwd')", "summarize from read_csv('/etc/passwd')"),
        *("from read_parquet('{folder}/other.parquet')", "from parquet_scan('{folder}/other.parquet')"),
        *("from read_parquet('{folder}/link.parquet')", "from read_parquet('{folder}/*.parquet')"),
        *("from parquet_metadata('{folder}/other.parquet')", "from parquet_schema('{folder}/other.parquet')"),
        *("from parquet_kv_metadata('{folder}/other.parquet')", "from parquet_file_metadata('{shard}')"),
        "from parquet_bloom_probe('{folder}/other.parquet', 'x', 'secret')",
        *("from read_duckdb('{folder}/catalog.duckdb')", "from glob('/etc/*')", "from glob('{folder}/*')"),
        *("from read_csv('http://localhost:1/x.csv')", "from read_parquet('s3://bucket/x.parquet')"),
        *("from duckdb_secrets()", "from which_secret('s3://bucket/x', 's3')", "from duckdb_settings()"),
        *("from enable_logging(storage_path='{folder}/log')", "from disable_logging()", "from truncate_duckdb_logs()"),
        *("from duckdb_logs()", "from checkpoint()", "from force_checkpoint()"),
        *("from enable_profiling(save_location='{folder}/profile.json')", "from disable_profiling()"),
        *("from create_external_resource('x')", "from register_external_resource_type('x')"),
        *("from arrow_scan(0, 0, 0)", "from pandas_scan(0)", "from seq_scan('v')", "from python_map_function(1)"),
        *("from summary(v)", "from test_all_types()", "from duckdb_extensions()", "from duckdb_no_such_thing()"),
        *("select sleep_ms(100000)", "select pg_sleep(100)", "select (1).sleep_ms()", "select Sleep_MS(100000)"),
        *("select list_transform(range(9), lambda x: sleep_ms(x))", "select write_log('hello')"),
        *("select getenv('HOME')", "select nextval('s')", "select setval('s', 1)", "select current_setting('threads')"),
        *("select json_serialize_plan('from v')", "select getvariable('x')", "select no_such_function(1)"),
        *("select sum(x) over (order by sleep_ms(1)) from v", "select x from v order by setseed(0.5)"),
    ],
    "Cannot access file|file system operations are disabled": [
        *("select * from '/etc/passwd.csv'", "from '{folder}/other.parquet'", "from '{folder}/*.parquet'"),
        *("from '{folder}/link.parquet'", "from '{folder}/./other.parquet'", "from '{folder}//other.parquet'"),
        *("from '{folder}/shard.parquet/../other.parquet'", "from 'file://{folder}/other.parquet'"),
        *("from 'file:{folder}/other.parquet'", 'from "{folder}/other.parquet"', "table '{folder}/other.parquet'"),
        *("from query_table('{folder}/other.parquet')", "from query_table(['v', '{folder}/other.parquet'])"),
        *("from calibration('{folder}/other.parquet')", "from hardest('{folder}/other.parquet')"),
        *("describe '{folder}/other.parquet'", "from (summarize '{folder}/other.parquet')"),
        *("from 'http://localhost:1/x.csv'", "from 's3://bucket/x.parquet'"),
    ],
    "does not exist": [
        *("select * from '/etc/passwd'", "from query_table('/etc/passwd')"),
        *(f"from query_table($$({COPY})$$)", f"from hardest($$({COPY})$$)"),
        *("from connection", "from pa", "select 0::pointer"),
    ],
    "syntax error": [
        *("selct 1", f"from ({COPY})", f"select ({COPY})", f"select 1\u037e {COPY}", "\uff53elect 1"),
    ],
    "NUL": [f"select 1\0; {COPY}", f"select 1;\0 {COPY}"],
    "nested too deeply|Max expression depth": [
        "select * from " + "(select * from " * 400 + "v" + ")" * 400,
        "select " + "+".join("1" * 3000),
    ],
}
ATTACKS = [(attack, met) for met, attacks in MET.items() for attack in attacks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that may be read, and others that may not."""
    tmp_path = tmp_path_factory.mktemp("attacked")
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    pq.write_table(pa.table({"x": [1, 2, 3]}), root / "shard.parquet")
    pq.write_table(pa.table({"x": ["secret"]}), root / "other.parquet")
    (root / "link.parquet").symlink_to(root / "other.parquet")
    (root / "same.parquet").symlink_to(root / "shard.parquet")
    with duckdb.connect(str(root / "catalog.duckdb")) as connection:
        add_macros(connection)
        create_view(connection, "v", [root / "shard.parquet"])
    return root


@pytest.mark.parametrize(("attack", "met"), ATTACKS, ids=[attack[:60] for attack, _ in ATTACKS])
def test_what_an_attack_meets(connection: duckdb.DuckDBPyConnection, folder: Path, attack: str, met: str) -> None:
    query = attack.replace("SERIALISED", SERIALISED)
    query = query.replace("{folder}", str(folder)).replace("{shard}", str(folder / "shard.parquet"))
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    try:
        with pytest.raises(QueryError, match=met):
            to_arrow(select(connection, query))
    finally:
        assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == before


def test_without_the_gate_these_attacks_would_write(folder: Path) -> None:
    """What the list of allowed functions is for: DuckDB's own lock lets a serialised COPY through."""
    shard = folder / "shard.parquet"
    before = shard.read_bytes()
    with open_database(folder / "catalog.duckdb", [shard]) as connection:
        connection.execute(f"from json_execute_serialized_sql($${SERIALISED.replace('{shard}', str(shard))}$$)")
    assert shard.read_bytes() != before
    shard.write_bytes(before)


@pytest.mark.parametrize("spelling", ["shard.parquet", "../store/shard.parquet", "./shard.parquet", "same.parquet"])
def test_other_spellings_of_an_allowed_file_are_that_file(
    connection: duckdb.DuckDBPyConnection, folder: Path, spelling: str
) -> None:
    assert select(connection, f"select sum(x) from '{folder}/{spelling}'").fetchall() == [(6,)]


def test_a_runaway_query_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read_only_query.LOCKED_DOWN, "max_execution_time", 100)
    for query in (
        "select count(*) from range(1000000000000)",
        "with recursive t(i) as (select 1 union all select i + 1 from t) select max(i) from t",
    ):
        with (
            open_files({"v": [folder / "shard.parquet"]}) as connection,
            pytest.raises(QueryError, match="600 seconds"),
        ):
            to_arrow(select(connection, query))


def test_a_query_that_needs_too_much_memory_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read_only_query.LOCKED_DOWN, "memory_limit", "100MB")
    with open_files({"v": [folder / "shard.parquet"]}) as connection, pytest.raises(QueryError, match="memory"):
        to_arrow(select(connection, "select distinct i::varchar || repeat('x', 99) from range(10000000) t(i)"))


def test_a_query_may_use_half_of_the_memory(connection: duckdb.DuckDBPyConnection) -> None:
    def limit(of: duckdb.DuckDBPyConnection) -> float:
        ((text,),) = of.execute("select current_setting('memory_limit')").fetchall()
        number, unit = str(text).split()
        return float(number) * {"MiB": 1, "GiB": 1024, "TiB": 1024**2}[unit]

    with duckdb.connect() as usual:  # DuckDB's own limit is 80 %
        assert limit(connection) == pytest.approx(limit(usual) * 5 / 8, rel=0.01)
