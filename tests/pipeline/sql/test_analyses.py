"""The table macros on rows whose answers can be computed by hand: logits are logarithms of the probabilities."""

import shutil
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import QueryError
from pipeline.query.catalog import CATALOG_FILE, open_catalog
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sql.database import add_macros
from pipeline.sql.read_only_query import select, to_arrow
from tests.helpers.messages import naming

Row = tuple[str, int, int, int | None, Sequence[float]]  # split, source row, variant, label, probabilities

COLUMNS = (
    "split varchar, source_row bigint, variant int, origin varchar, sentence1 varchar, sentence2 varchar, label int, "
    "logits float[], text_hash blob"
)
PLAIN: list[Row] = [
    ("train", 0, 0, 0, (0.85, 0.15)),  # right
    ("train", 1, 0, 0, (0.75, 0.25)),  # right
    ("train", 2, 0, 1, (0.73, 0.27)),  # wrong
    ("train", 3, 0, 1, (0.12, 0.88)),  # right
    ("train", 4, 0, None, (0.5, 0.5)),  # no gold
    ("validation", 0, 0, 1, (0, 1)),  # right, and sure of it
]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        yield connection


def create(connection: duckdb.DuckDBPyConnection, name: str, rows: list[Row], texts: str | None = "text") -> None:
    connection.execute(f"create table {name} ({COLUMNS})")
    for split, row, variant, label, probabilities in rows:
        logits = [log(p) if p else -1000.0 for p in probabilities]
        origin, text = "mask" if variant else "original", texts and f"{texts} {row}"
        values = [split, row, variant, origin, text, None, label, logits, f"hash of {row}".encode()]
        connection.execute(f"insert into {name} values (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()


def close(rows: list[tuple[Any, ...]]) -> Any:
    return [tuple(pytest.approx(v, abs=1e-6) if isinstance(v, float) else v for v in row) for row in rows]


def test_calibration(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "t", PLAIN)
    assert ask(connection, "from calibration(t)") == close(
        [
            ("train", 0.7, 0.8, 2, (0.75 + 0.73) / 2, 0.5),
            ("train", 0.8, 0.9, 2, (0.85 + 0.88) / 2, 1.0),
            ("validation", 0.9, 1.0, 1, 1.0, 1.0),
        ]
    )


def test_calibration_error(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "t", PLAIN)
    error = (2 * (0.74 - 0.5) + 2 * (1 - 0.865)) / 4
    confidence = (0.85 + 0.75 + 0.73 + 0.88) / 4
    brier = 2 * (0.15**2 + 0.25**2 + 0.73**2 + 0.12**2) / 4
    log_loss = -log(0.85 * 0.75 * 0.27 * 0.88) / 4
    expected = close(
        [("train", 4, 0.75, confidence, error, brier, log_loss), ("validation", 1, 1.0, 1.0, 0.0, 0.0, 0.0)]
    )
    assert ask(connection, "from calibration_error(t)") == expected


def test_confusion(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "t", PLAIN)
    assert ask(connection, "from confusion(t)") == close(
        [("train", 0, 0, 2, 1.0), ("train", 1, 0, 1, 0.5), ("train", 1, 1, 1, 0.5), ("validation", 1, 1, 1, 1.0)]
    )


def test_columns_of_the_users_file_stand_beside_each_row(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "t", [*PLAIN, ("train", 5, 0, 0, (0.05, 0.95))])
    connection.execute("create view own as select *, source_row + 10 as file_row, 'T' || source_row as file_id from t")
    for question in ("hardest", "gold_disagreement", "label_errors"):
        plain, own = (connection.sql(f"from {question}({name})") for name in ("t", "own"))
        assert own.columns == [*plain.columns, "file_row", "file_id"]
        assert own.fetchall() == [(*row, row[1] + 10, f"T{row[1]}") for row in plain.fetchall()] != []


def test_hardest(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "t", PLAIN)
    rows = ask(connection, "select split, source_row, label, teacher, margin, sentence1 from hardest(t) limit 3")
    assert rows == close(
        [
            ("train", 4, None, 0, 0.0, "text 4"),
            ("train", 2, 1, 0, 0.73 - 0.27, "text 2"),
            ("train", 1, 0, 0, 0.75 - 0.25, "text 1"),
        ]
    )
    assert ask(connection, "select count(*) from hardest(t)") == [(6,)]


# b reverses row 1 of a, lacks row 3, adds row 9, and has the same logits for the others
OTHER: list[Row] = [
    ("train", 9, 0, 0, (0.5, 0.5)),
    ("train", 1, 0, 0, (0.4, 0.6)),
    ("train", 0, 0, 0, (0.85, 0.15)),
    ("train", 2, 0, 1, (0.73, 0.27)),
    ("train", 4, 0, None, (0.5, 0.5)),
]
TURNED = 0.75 * log(0.75 / 0.4) + 0.25 * log(0.25 / 0.6)  # divergence of (0.4, 0.6) from (3/4, 1/4)
BACK = 0.4 * log(0.4 / 0.75) + 0.6 * log(0.6 / 0.25)


@pytest.mark.parametrize("texts", ["text", None])
def test_agreement_is_by_key(connection: duckdb.DuckDBPyConnection, texts: str | None) -> None:
    create(connection, "a", PLAIN)
    create(connection, "b", OTHER, texts)
    for pair, kl in (("a, b", TURNED), ("b, a", BACK)):
        assert ask(connection, f"from agreement({pair})") == close([("train", 4, 3 / 4, kl / 4)])
    rows = ask(connection, "select split, source_row, variant, label, a, b, kl, sentence1 from disagreement(a, b)")
    assert rows == close([("train", 1, 0, 0, 0, 1, TURNED, "text 1")])


def test_rows_of_other_texts_are_not_compared(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "a", PLAIN)
    create(connection, "b", OTHER, "another text")
    assert ask(connection, "from agreement(a, b)") == ask(connection, "from disagreement(a, b)") == []
    connection.execute("update b set sentence1 = 'text 1' where source_row = 1")
    assert ask(connection, "select n, agreement from agreement(a, b)") == [(1, 0.0)]


def test_the_most_different_come_first(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "a", [("train", row, 0, 0, (0.75, 0.25)) for row in range(3)])
    create(connection, "b", [("train", row, 0, 0, (p, 1 - p)) for row, p in enumerate((0.4, 0.1, 0.4))])
    assert ask(connection, "select source_row from disagreement(a, b)") == [(1,), (0,), (2,)]


def test_teachers_with_other_classes_are_not_compared(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "a", PLAIN)
    create(connection, "b", [("train", 0, 0, 0, (0.2, 0.3, 0.5))])
    with pytest.raises(duckdb.Error, match=naming("kl: ", "2 logits", "3")):
        ask(connection, "from agreement(a, b)")


def test_variants_against_their_originals(connection: duckdb.DuckDBPyConnection) -> None:
    variants: list[Row] = [
        ("train", 1, 1, None, (0.4, 0.6)),
        ("train", 1, 2, None, (0.75, 0.25)),
        ("train", 3, 1, None, (0.12, 0.88)),
        ("train", 9, 1, None, (0.5, 0.5)),  # of a row that is not there
    ]
    create(connection, "t", PLAIN + variants)
    assert ask(connection, "from variant_agreement(t)") == close([("mask", 3, 2 / 3, TURNED / 3)])
    connection.execute("update t set origin = 'pos' where source_row = 3 and variant = 1")
    assert ask(connection, "from variant_agreement(t)") == close([("mask", 2, 0.5, TURNED / 2), ("pos", 1, 1.0, 0.0)])
    create(connection, "plain", PLAIN)
    assert ask(connection, "from variant_agreement(plain)") == []


def test_label_errors(connection: duckdb.DuckDBPyConnection) -> None:
    rows: list[Row] = [
        ("train", 0, 0, 0, (0.9, 0.1)),
        ("train", 1, 0, 0, (0.8, 0.2)),
        ("train", 2, 0, 0, (0.1, 0.9)),  # likely 1: class 0 is usually at (0.9 + 0.8 + 0.1 + 0.4) / 4 = 0.55
        ("train", 3, 0, 0, (0.4, 0.6)),  # not likely enough to be 1, which is usually at (0.7 + 0.9 + 0.35) / 3 = 0.65
        ("train", 4, 0, 1, (0.3, 0.7)),
        ("train", 5, 0, 1, (0.1, 0.9)),
        ("train", 6, 0, 1, (0.65, 0.35)),  # likely 0
        ("train", 7, 0, None, (0.99, 0.01)),
        ("validation", 0, 0, 1, (0.95, 0.05)),  # no row of class 0 in this split to compare with
    ]
    create(connection, "t", rows)
    query = "select split, source_row, label, likely, p_label, p_class, sentence1 from label_errors(t)"
    assert ask(connection, query) == close(
        [("train", 2, 0, 1, 0.1, 0.9, "text 2"), ("train", 6, 1, 0, 0.35, 0.65, "text 6")]
    )


def test_dev_rows_that_are_training_rows(connection: duckdb.DuckDBPyConnection) -> None:
    rows: list[Row] = [
        ("train", 3, 0, 0, (0.5, 0.5)),
        ("train", 5, 0, 0, (0.5, 0.5)),
        ("train", 7, 1, None, (0.5, 0.5)),  # a variant's text is no row of the task
        ("validation", 3, 0, 1, (0.5, 0.5)),
        ("validation", 4, 0, 1, (0.5, 0.5)),
        ("validation", 5, 1, None, (0.5, 0.5)),
        ("validation", 7, 0, 1, (0.5, 0.5)),
    ]
    create(connection, "t", rows)
    connection.execute("update t set sentence1 = 'text 3' where split = 'train' and source_row = 5")
    assert ask(connection, "from dev_in_train(t)") == [("validation", 3, 3, 1, "text 3", None)]
    connection.execute("update t set sentence2 = 'b' where split = 'train' and source_row = 3")
    assert ask(connection, "select train_row from dev_in_train(t)") == [(5,)]
    connection.execute("update t set sentence2 = 'b' where split = 'validation'")
    assert ask(connection, "select train_row from dev_in_train(t)") == [(3,)]
    copy = "sentence1 = ' TEXT\t 3 ', sentence2 = 'B'"
    connection.execute(f"update t set {copy} where split = 'validation' and source_row = 3")
    assert ask(connection, "select train_row from dev_in_train(t)") == [(3,)]
    connection.execute("update t set sentence1 = ' \u00a0\n\u200b', sentence2 = null")  # equal by accident
    assert ask(connection, "select train_row from dev_in_train(t)") == []
    connection.execute("update t set sentence1 = null")  # a set without text has hashes
    assert ask(connection, "select source_row, train_row from dev_in_train(t)") == [(3, 3)]


def test_rows_where_teacher_and_gold_disagree_most_come_first(connection: duckdb.DuckDBPyConnection) -> None:
    rows = [("train", 0, 0, 0, (0.4, 0.6)), ("train", 1, 0, 1, (0.9, 0.1)), ("train", 2, 0, 0, (0.9, 0.1))]
    create(connection, "t", [*rows, ("train", 3, 1, None, (0.1, 0.9))])
    found = ask(connection, "select source_row, label, teacher, p_label, p_teacher from gold_disagreement(t)")
    assert found == close([(1, 1, 0, 0.1, 0.9), (0, 0, 1, 0.4, 0.6)])


def test_rows_without_gold_do_not_count(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "bins", [("train", row, 0, None, (0.2, 0.3, 0.5)) for row in range(3)])
    create(connection, "score", [("train", row, 0, None, (2.5,)) for row in range(3)])
    for view in ("bins", "score"):
        for analysis in ("calibration", "calibration_error", "confusion", "label_errors"):
            assert ask(connection, f"from {analysis}({view})") == []
        assert ask(connection, f"select n, agreement, kl from agreement({view}, {view})") == [(3, 1.0, 0.0)]
    assert ask(connection, "select source_row, margin from hardest(score)") == [(0, None), (1, None), (2, None)]


def test_on_real_sets(store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    shelf = Path(shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns(CATALOG_FILE)))
    shutil.copytree(shelf / "opinion", shelf / "opinion-2")

    with open_catalog(shelf) as opened:
        accuracy = select(opened, "select accuracy from calibration_error(opinion) where split = 'train'").fetchall()
        assert accuracy == [(pytest.approx(opinion_set.record.scores["train"]["accuracy"]),)]
        assert select(opened, "from agreement(opinion, opinion_2)").fetchall() == [
            ("train", 96, 1.0, 0.0),
            ("validation", 40, 1.0, 0.0),
        ]
        assert select(opened, "from disagreement('opinion', 'opinion_2')").fetchall() == []
        confused = select(opened, "select label_name('opinion', label), sum(n) from confusion(opinion) group by all")
        gold = opinion_set.read("train", ("label",)).column("label").to_pylist()
        gold += opinion_set.read("validation", ("label",)).column("label").to_pylist()
        assert dict(confused.fetchall()) == {"bad": gold.count(0), "good": gold.count(1)}
        with pytest.raises(QueryError, match=naming("nobody", "opinion_2")):
            to_arrow(select(opened, "from hardest(nobody)"))


def test_rows_without_text_are_compared_by_their_hash(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "a", PLAIN)
    create(connection, "b", PLAIN, texts=None)
    connection.execute("update b set text_hash = 'another' where split = 'train' and source_row < 3")
    assert [row[:2] for row in ask(connection, "from agreement(a, b)")] == [("train", 2), ("validation", 1)]
