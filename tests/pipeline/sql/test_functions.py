"""Every function of DuckDB is on one side of functions.txt; the queries below are how it may be called."""

import duckdb
import pytest

from pipeline.errors import QueryError
from pipeline.sql.database import add_macros
from pipeline.sql.read_only_query import check_select, listed_functions
from student.sql_functions import FUNCTIONS
from tests.helpers.messages import naming

KINDS = {"table": "tables", "table_macro": "tables", "pragma": "pragmas"}


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    add_macros(connection)
    return connection


def listed() -> dict[str, set[str]]:
    """The functions of this DuckDB by kind; no extension is loaded that the package has not built in."""
    names: dict[str, set[str]] = {"values": set(), "tables": set(), "pragmas": set()}
    with duckdb.connect(config={"autoload_known_extensions": False}) as bare:
        for kind, name in bare.execute("select function_type, function_name from duckdb_functions()").fetchall():
            names[KINDS.get(kind, "values")].add(name.lower())
    return names


def test_every_function_is_on_one_side() -> None:
    """Fails when a new DuckDB brings one: decide what it may do, and put its name into functions.txt."""
    sides = listed_functions()
    assert sides.keys() == {"values", "tables", "refused values", "refused tables", "refused pragmas"}
    for kind, names in listed().items():
        allowed, refused = sides.get(kind, set()), sides[f"refused {kind}"]
        assert not allowed & refused
        assert not names - allowed - refused


def test_no_function_that_reads_a_file_or_a_setting_is_allowed() -> None:
    suspicious = ("read_", "scan", "glob", "secret", "setting", "copy_", "execute", "query", "log_", "sleep", "env")
    allowed = listed_functions()["values"] | listed_functions()["tables"]
    found = {name for name in allowed for word in suspicious if word in name}
    assert found == {"query_table", "json_copy_strftime_if_date", "json_copy_strftime_if_timestamp"}


@pytest.mark.parametrize(
    "query",
    [
        "select margin([0.1, 0.9]), Entropy([1, 2]), [1, 2][1], {'a': 1}.a, map {'k': 1}['k'], 5!, -x, 2 ** 3",
        "select count(*), count(distinct x), sum(x) filter (x > 1), string_agg(x, ',' order by x) from v group by all",
        "select row_number() over (), lag(x) over (order by x), ntile(3) over w from v window w as (order by x)",
        "select [i * 2 for i in range(3) if i > 1], list_transform([1], lambda e: e + 1), unnest([1, 2]) from v",
        "select x in (1, 2), x between 1 and 2, x is distinct from 1, x like 'a%', x ilike 'b', x not like 'c' from v",
        "select x similar to 'a.*', x ~ 'b', x glob 'c*', x || 'd', x collate nocase, not x, x ^@ 'e' from v",
        "select extract(year from d), d at time zone 'UTC', interval 1 day, date '2020-01-01', current_date, now()",
        "select case when x then 1 end, coalesce(x, 1), ifnull(x, 1), nullif(x, 1), if(x, 1, 2), try_cast(x as int)",
        "select substring(x from 1 for 2), position('a' in x), trim(both 'a' from x), overlay(x placing 'b' from 1)",
        "select grouping(x), x from v group by rollup (x)",
        "select columns('a.*'), * exclude (b) replace (c + 1 as c) from v",
        "select j->'a', j->>'$.b', json_extract(j, '$'), x::json, struct_pack(a := 1), try(1 / 0) from v",
        "from (pivot v on x in (1, 2) using sum(y))",
        "from (unpivot v on x, y into name n value w)",
        "from (describe v)",
        "from (summarize v)",
        "select * from v using sample 10 rows",
        "from range(3), generate_series(1, 2), unnest([1]), repeat(1, 2)",
        "with recursive t(i) as (select 1 union all select i + 1 from t where i < 3) from t",
    ],
)
def test_how_functions_may_be_called(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """The same query is refused as soon as a function that is not allowed stands beside it."""
    check_select(connection, query)
    with pytest.raises(QueryError, match="'getenv'"):
        check_select(connection, f"select getenv('HOME'), * from ({query})")


def test_own_macros_and_students_may_be_called(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="'twice'"):
        check_select(connection, "select twice(3)")
    connection.execute("create macro Twice(x) as 2 * x")
    students = ", ".join(f"{name}('runs/mnli', text)" for name in FUNCTIONS)
    check_select(connection, f"select twice(3), {students} from calibration(v)")


def test_a_typing_error_is_told_with_what_may_be_meant(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match=naming("'margn'", "'margin'")):
        check_select(connection, "select margn(logits) from v")
