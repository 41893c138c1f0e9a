"""Reports on 150 classes, too many for a drawing of their confusion."""

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from distill.apps.report.predictions import commonest_mistakes, label_table
from distill.commands.students import MOST_LABELS, add_labels
from distill.result import Result
from pipeline.sql.database import add_macros
from pipeline.tasks.calibration_error import calibration_bins, confidences
from pipeline.tasks.metrics import confusion_of_labels, scores_by_label
from pipeline.tasks.target import Target, softmax

TARGET = Target(kind="classes", names=tuple(f"class {k}" for k in range(150)))
GOLD = np.arange(450) % 150
SAID = np.where(GOLD == 7, 9, GOLD)  # 7 is taken for 9 all three times
SAID[0] = 149  # and 0 once for 149


LOGITS = np.eye(150, dtype=np.float32)[SAID]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        table = pa.table({"split": ["dev"] * len(GOLD), "label": GOLD, "logits": LOGITS.tolist()})
        connection.register("t", table)
        yield connection


def test_the_commonest_mistakes_have_names() -> None:
    counts = confusion_of_labels(TARGET, LOGITS, GOLD)
    [table] = commonest_mistakes(counts, TARGET, "teacher")
    assert list(table.rows) == [("class 7", "class 9", 3, 1.0), ("class 0", "class 149", 1, pytest.approx(1 / 3))]
    assert commonest_mistakes(counts, TARGET.model_copy(update={"names": ("a", "b")}), "teacher") == []
    assert len(label_table(scores_by_label(TARGET, LOGITS, GOLD), "teacher").rows) == 150


def test_macros_answer_what_evaluate_returns(connection: duckdb.DuckDBPyConnection) -> None:
    known = scores_by_label(TARGET, LOGITS, GOLD)
    rows = connection.execute("select label, gold, predicted, precision, recall, f1 from class_scores(t)").fetchall()
    assert len(rows) == 150
    for label, gold, said, precision, recall, f1 in rows:
        row = known[TARGET.names[label]]
        assert (gold, said) == (row["gold"], row["predicted"])
        assert [precision or 0, recall, f1] == pytest.approx([row["precision"], row["recall"], row["f1"]])
    counts = {(a, b): n for a, b, n in connection.execute("select label, teacher, n from confusion(t)").fetchall()}
    names = {name: number for number, name in enumerate(TARGET.names)}
    evaluated = confusion_of_labels(TARGET, LOGITS, GOLD)
    assert counts == {(names[a], names[b]): n for a, row in evaluated.items() for b, n in row.items()}
    bins = connection.sql("select * exclude (split) from calibration(t)").fetchall()
    p_NC = softmax(LOGITS).astype(np.float64)
    expected = calibration_bins(*confidences(TARGET, p_NC, GOLD))
    assert [list(row) for row in bins] == [pytest.approx(list(row.values())) for row in expected]


def test_a_terminal_shows_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result()
    add_labels(result, "dev", scores_by_label(TARGET, LOGITS, GOLD))
    result.print()
    shown = capsys.readouterr().out
    assert f"the {MOST_LABELS} worst of 150 labels" in shown
    names = [f"class {k} " in shown for k in (7, 9, 0, 149)]
    assert all(names)
    assert len(shown.splitlines()) < MOST_LABELS + 10
