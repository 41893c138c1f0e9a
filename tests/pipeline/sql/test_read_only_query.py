import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import QueryError
from pipeline.sql.database import add_macros, view_name
from pipeline.sql.read_only_query import as_dicts, create_view, open_files, select, to_arrow, write_parquet
from tests.helpers.messages import naming


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file, and a database with a view of it."""
    root = tmp_path / "store"
    root.mkdir()
    pq.write_table(pa.table({"x": [1, 2, 3]}), root / "shard.parquet")
    with duckdb.connect(str(root / "catalog.duckdb")) as connection:
        add_macros(connection)
        create_view(connection, "v", [root / "shard.parquet"])
    return root


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
        ("select column_name from (describe v)", [("x",)]),
        ("show tables", [("v",)]),
        ("from query_table(v) limit 1", [(1,)]),
        ("select i from range(2) t(i)", [(0,), (1,)]),
        ("unpivot v on x order by value limit 1", [("x", 1)]),
    ],
)
def test_honest_queries_are_answered(connection: duckdb.DuckDBPyConnection, query: str, rows: list[object]) -> None:
    assert select(connection, query).fetchall() == rows


def test_refusal_says_what_the_query_is(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match=naming("SELECT", "DROP")):
        select(connection, "select 1; drop view v")
    with pytest.raises(QueryError, match="SELECT"):
        select(connection, " ")
    with pytest.raises(QueryError, match=r"(?s)xx.*Candidate bindings"):
        select(connection, "select xx from v")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("select count(*) from 2024-x", ['"2024_x"']),
        ("select count(*) from order", ['"order"']),
        ("select count(*) from my-news", ['"my_news"']),
        ("select count(*) from my_news wher x = 1", []),
    ],
)
def test_a_set_whose_name_needs_quotes_is_told(query: str, names: list[str], tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "rows.parquet")
    views = [view_name(name) for name in ("2024-x", "order", "my-news")]
    with open_files({view: [tmp_path / "rows.parquet"] for view in views}) as connection:
        with pytest.raises(QueryError, match="syntax error") as caught:
            select(connection, query)
        assert re.findall(r'"\w+"', str(caught.value).splitlines()[-1]) == names
        assert select(connection, 'select count(*) from "order", "2024_x"').fetchall() == [(1,)]


def test_the_name_of_a_label_in_place_of_its_number_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": pa.array([0, 1], pa.int32()), "x": [1, 2]}), tmp_path / "rows.parquet")
    with open_files({"v": [tmp_path / "rows.parquet"]}) as connection:
        with pytest.raises(QueryError, match=r"(?s)Could not convert string 'news' .*label_name\(SET, label\)"):
            to_arrow(select(connection, "from v where label = 'news'"))
        with pytest.raises(QueryError) as caught:
            to_arrow(select(connection, "from v where x = 'news'"))
    assert "label_name" not in str(caught.value)


def test_view_over_several_files_with_odd_names(tmp_path: Path) -> None:
    paths = [tmp_path / "it's [1].parquet", tmp_path / "* ?.parquet"]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"x": [number]}), path)
    with open_files({"v": paths}) as connection:
        assert select(connection, "select x from v order by x").fetchall() == [(0,), (1,)]


def test_columns_of_one_name_both_have_their_values() -> None:
    assert as_dicts(["a", "a", "a_1"], [(1, 2, 3)]) == [{"a": 1, "a_2": 2, "a_1": 3}]


def test_columns_of_one_name_can_be_read_from_parquet(tmp_path: Path) -> None:
    with open_files({}) as connection:
        write_parquet(tmp_path / "rows.parquet", select(connection, "select 1 as a, 2 as a, 3 as a_1"))
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == [{"a": 1, "a_2": 2, "a_1": 3}]
