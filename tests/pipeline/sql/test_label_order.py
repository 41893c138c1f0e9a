"""Two sets with the same labels in another order, and one with other labels, compared in SQL."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from pipeline.errors import QueryError
from pipeline.sql.database import add_macros
from pipeline.sql.read_only_query import select
from tests.helpers.messages import naming

LABELS = {"first": ["bad", "good"], "second-one": ["good", "bad"], "other": ["no", "yes"]}
COLUMNS = (
    "'train' as split, 0 as source_row, 0 as variant, 'text' as sentence1, null::varchar as sentence2, "
    "null::blob as text_hash, 0 as label, [1, 0]::float[] as logits"
)
JOINED = "first a join second_one b using (split, source_row)"


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        connection.execute('create table sets ("set" varchar, "view" varchar, labels varchar[])')
        connection.execute("create macro label_name(name, class) as 'good'")
        for name, labels in LABELS.items():
            view = name.replace("-", "_")
            connection.execute("insert into sets values (?, ?, ?)", [name, view, labels])
            connection.execute(f"create view {view} as select {COLUMNS}")
        connection.execute(f"create view examples as select 'first' as \"set\", {COLUMNS}")
        yield connection


def ask(connection: duckdb.DuckDBPyConnection, query: str, **runs: list[str]) -> list[Any]:
    return select(connection, query, runs).fetchall()


@pytest.mark.parametrize(
    "query",
    [
        "from agreement(first, second_one)",
        "from disagreement('first', b := SECOND_ONE)",
        f"select avg(kl(a.logits, b.logits)) from {JOINED}",
        f"select label_kl(a.logits, b.logits) from {JOINED}",
        f"select mix([a.logits, b.logits], [1, 1]) from {JOINED}",
        f"select mix_labels([a.logits, b.logits], [1, 1]) from {JOINED}",
        f"select Vote([a.logits, b.logits]) from {JOINED}",
        "select kl(a.logits, b.logits) from (from first) a, (select * from second_one) b",
        """select kl(a.logits, b.logits) from examples a join examples b using (source_row)
           where a."set" = 'first' and b."set" = 'second-one'""",
        """select kl(a.logits, b.logits) from examples a join examples b using (source_row) where a."set" < b."set" """,
        """select kl(a.logits, b.logits) from first a join examples b using (source_row) where b."set" <> a.split""",
        "from agreement(first, other)",
        "select label_name('second-one', teacher) from confusion(first)",
    ],
)
def test_labels_in_another_order_are_not_compared(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    with pytest.raises(QueryError, match=naming("first")):
        ask(connection, query)


@pytest.mark.parametrize(
    "query",
    [
        "from agreement(first, first)",
        "select label_name('first', teacher) from confusion(first)",
        """select kl(a.logits, b.logits) from examples a join examples b using (source_row)
           where a."set" = 'first' and b."set" = 'first'""",
        """select kl(a.logits, b.logits) from first a join examples b using (source_row) where b."set" = 'first'""",
        f"select label_name('first', argmax(a.logits)) = label_name('second-one', argmax(b.logits)) from {JOINED}",
        "with second_one as (from first) select kl(a.logits, b.logits) from first a, second_one b",
    ],
)
def test_what_is_compared_by_name_or_in_one_order_is_answered(
    connection: duckdb.DuckDBPyConnection, query: str
) -> None:
    assert len(ask(connection, query)) == 1


def test_scores_of_a_student_are_in_the_order_of_its_labels(connection: duckdb.DuckDBPyConnection) -> None:
    connection.create_function("scores", lambda run, text: [0.5, 0.5], ["varchar", "varchar"], "float[]")
    query = "select scores('run', sentence1)[1] - softmax(logits)[1] from first"
    assert ask(connection, query, run=LABELS["first"]) == [(pytest.approx(0.5 - 0.7310586),)]
    assert len(ask(connection, query, run=LABELS["other"])) == 1  # a student of another task
    with pytest.raises(QueryError, match=naming("run", "good, bad")):
        ask(connection, query, run=LABELS["second-one"])
