"""Reports on 150 classes, too many for a drawing of their confusion."""

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from distill.apps.report.split_charts import confused, label_scores
from distill.commands.students import MOST_LABELS, add_labels
from distill.result import Result
from pipeline.sql.macros import add_macros
from pipeline.tasks.metrics import scores_by_label
from pipeline.tasks.target import Target

TARGET = Target(kind="classes", names=tuple(f"class {k}" for k in range(150)))
GOLD = np.arange(450) % 150
SAID = np.where(GOLD == 7, 9, GOLD)  # 7 is taken for 9 all three times
SAID[0] = 149  # and 0 once for 149


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        logits = np.eye(150)[SAID].tolist()
        connection.register("t", pa.table({"split": ["dev"] * len(GOLD), "label": GOLD, "logits": logits}))
        yield connection


def test_the_commonest_mistakes_have_names(connection: duckdb.DuckDBPyConnection) -> None:
    [table] = confused(connection, "t", TARGET, "teacher")
    assert list(table.rows) == [("class 7", "class 9", 3, 1.0), ("class 0", "class 149", 1, pytest.approx(1 / 3))]
    assert confused(connection, "t", TARGET.model_copy(update={"names": ("a", "b")}), "teacher") == []


def test_scores_of_each_class_are_those_of_evaluate(connection: duckdb.DuckDBPyConnection) -> None:
    table = label_scores(connection, "t", TARGET, "teacher")
    known = scores_by_label(TARGET, np.eye(150, dtype=np.float32)[SAID], GOLD)
    assert len(table.rows) == 150
    for name, gold, said, precision, recall, f1 in table.rows:
        row = known[str(name)]
        assert (gold, said) == (row["gold"], row["predicted"])
        assert [precision or 0, recall, f1] == pytest.approx([row["precision"], row["recall"], row["f1"]])


def test_a_terminal_shows_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result()
    add_labels(result, "dev", scores_by_label(TARGET, np.eye(150, dtype=np.float32)[SAID], GOLD))
    result.print()
    shown = capsys.readouterr().out
    assert f"the {MOST_LABELS} worst of 150 labels" in shown
    names = [f"class {k} " in shown for k in (7, 9, 0, 149)]
    assert all(names)
    assert len(shown.splitlines()) < MOST_LABELS + 10
