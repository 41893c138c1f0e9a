"""Students in SQL: in anyone's DuckDB, and behind the gate of ``distill sql``."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import QueryError
from pipeline.tasks.target import softmax
from student.export.export import export
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings
from student.sql_functions import register
from tests.helpers.commands import invoke
from tests.helpers.engine import needs_engine
from tests.helpers.messages import naming

TEXTS = [f"the {thing} was {word} ." for thing in ("food", "wine") for word in ("dull", "lovely", "awful", "perfect")]


@pytest.fixture
def own() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to DuckDB that has nothing of ours."""
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def shelf(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the store, into which a catalog may be written."""
    return Path(shutil.copytree(store, tmp_path_factory.mktemp("shelf") / "store"))


def test_functions_say_what_the_predictor_says(opinion_run: Path, own: duckdb.DuckDBPyConnection) -> None:
    texts = [text for text in TEXTS for _ in range(700)]  # more than one chunk of DuckDB's
    own.register("rows", pa.table({"n": range(len(texts)), "text": texts}))
    register(own, opinion_run)
    query = f"select predict('{opinion_run}', text), scores('{opinion_run}', text) from rows order by n"
    labels, scores = zip(*own.execute(query).fetchall(), strict=True)
    predictor = Predictor(opinion_run)
    logits_NC = predictor.logits(texts)
    assert list(labels) == [predictor.student.config.target.names[k] for k in logits_NC.argmax(axis=1)]
    np.testing.assert_allclose(np.array(scores), softmax(logits_NC), atol=1e-6)


def test_pairs_have_two_texts_and_scores_one_number(
    roles_run: Path, ratings_run: Path, own: duckdb.DuckDBPyConnection
) -> None:
    register(own, str(roles_run), ratings_run)
    query = (
        f"select predict('{roles_run}', 'anna paid ben .', 'ben paid anna .'), scores('{ratings_run}', '{TEXTS[1]}')"
    )
    assert own.execute(query).fetchall() == [
        (
            Predictor(roles_run)(["anna paid ben ."], ["ben paid anna ."])[0]["label"],
            [pytest.approx(Predictor(ratings_run)([TEXTS[1]])[0]["score"])],
        )
    ]


@pytest.mark.parametrize("kind", ["folder", pytest.param("file", marks=needs_engine)])
def test_several_tasks_answer_from_one_reading(
    together: Path, own: duckdb.DuckDBPyConnection, tmp_path: Path, kind: str
) -> None:
    if kind == "file":
        export(ExportSettings(run=together, file=tmp_path / "together.distill"))
        together = tmp_path / "together.distill"
    register(own, together)
    own.register("rows", pa.table({"n": range(len(TEXTS)), "text": TEXTS}))
    tasks = own.execute(f"select predict_tasks('{together}', text) from rows order by n").fetchall()
    query = f"select predict('{together}/opinion', text), scores('{together}/score', text) from rows order by n"
    for (answer,), (label, scores) in zip(tasks, own.execute(query).fetchall(), strict=True):
        assert list(answer) == ["opinion", "score"]
        assert (answer["opinion"]["label"], answer["score"]["label"]) == (label, None)
        assert answer["score"]["scores"] == pytest.approx(scores)
    pair = f"predict_tasks('{together}', 'anna paid ben .', 'ben paid anna .')"
    ((answer, null),) = own.execute(f"select {pair}, predict_tasks('{together}', null)").fetchall()
    assert (list(answer), null) == (["roles"], None)
    with pytest.raises(duckdb.Error, match=naming("predict: ", "predict_tasks", f"{together}/opinion")):
        own.execute(f"select predict('{together}', 'a')").fetchall()
    with pytest.raises(duckdb.Error, match=naming("predict_tasks: ", f"{together}/opinion")):
        own.execute(f"select predict_tasks('{together}/opinion', 'a')").fetchall()


def test_null_is_null_and_registering_again_replaces(
    opinion_run: Path, roles_run: Path, own: duckdb.DuckDBPyConnection
) -> None:
    register(own, roles_run)
    register(own, opinion_run)
    query = f"select predict('{opinion_run}', t), scores('{opinion_run}', t) from (values (null), ('')) v(t) order by t"
    (label, scores), nulls = own.execute(query).fetchall()
    assert nulls == (None, None)
    assert (label in ("bad", "good"), len(scores)) == (True, 2)
    with pytest.raises(duckdb.Error, match=naming("predict: ", roles_run)):
        own.execute(f"select predict('{roles_run}', 'a', 'b')").fetchall()


def test_functions_of_others_are_not_replaced(opinion_run: Path, own: duckdb.DuckDBPyConnection) -> None:
    register(own, opinion_run)
    with own.cursor() as cursor, pytest.raises(QueryError, match=naming("register: ", "'predict'")):
        register(cursor, opinion_run)
    register(own, opinion_run)
    with duckdb.connect() as other:
        other.execute("create macro scores(x) as x")
        with pytest.raises(QueryError, match=naming("register: ", "'scores'")):
            register(other, opinion_run)
        other.execute("drop macro scores")
        register(other, opinion_run)
        assert other.execute(f"select len(scores('{opinion_run}', 'x'))").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select predict('nowhere', 'x')", "'nowhere'"),
        ("select predict('{run}', 'x', 'y')", "'opinion'"),
        ("select predict('{run}')", naming("predict(run, text)", "predict(run, text1, text2)")),
        ("select predict('{run}', 5)", naming("int32", "::varchar")),
        ("select predict(t, 'x') from (values ('a'), ('b')) v(t)", "run"),
    ],
)
def test_misuse_is_told(query: str, message: str, opinion_run: Path, own: duckdb.DuckDBPyConnection) -> None:
    register(own, opinion_run)
    with pytest.raises(duckdb.Error, match=message):
        own.execute(query.format(run=opinion_run)).fetchall()


def test_labels_are_not_asked_of_a_student_with_scores(ratings_run: Path, own: duckdb.DuckDBPyConnection) -> None:
    register(own, ratings_run)
    with pytest.raises(duckdb.Error, match=naming("predict: ", "scores(run, text)[1]")):
        own.execute(f"select predict('{ratings_run}', 'x')").fetchall()


def test_where_student_and_teacher_disagree_is_one_select(opinion_run: Path, shelf: Path) -> None:
    query = f"""
        select source_row, split, predict('{opinion_run}', sentence1) as student,
            label_name('opinion', argmax(logits)) as teacher
        from opinion where student <> teacher order by all
    """
    found = json.loads(invoke("sql", query, "--store", shelf, "--json").stdout)
    rows = json.loads(invoke("sql", "from opinion", "--store", shelf, "--json").stdout)
    answers = Predictor(opinion_run)([row["sentence1"] for row in rows])
    names = Predictor(opinion_run).student.config.target.names
    expected = [
        (row["source_row"], row["split"], answer["label"])
        for row, answer in zip(rows, answers, strict=True)
        if answer["label"] != names[int(np.argmax(row["logits"]))]
    ]
    assert [(row["source_row"], row["split"], row["student"]) for row in found] == sorted(expected)
    assert 0 < len(found) < len(rows)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select predict(sentence1, sentence1) from opinion", "folder"),
        ("select predict('no/run', sentence1) from opinion", "no/run: "),
        ("copy (select predict('{run}', 'x')) to '{folder}/out'", "SELECT"),
        (
            "select predict('{run}', sentence1), x from read_parquet('{folder}/x.parquet')",
            "'read_parquet'",
        ),
        ("select predict('{run}', sentence1, sentence1) from opinion", "'opinion'"),
    ],
)
def test_behind_the_gate_nothing_else_is_let_through(
    query: str, message: str, opinion_run: Path, shelf: Path, tmp_path: Path
) -> None:
    result = invoke("sql", query.format(run=opinion_run, folder=tmp_path), "--store", shelf)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())
