"""The views on sets: the rows as they were written, whole branches left out, sets without text, all sets at once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.query.catalog import CATALOG_FILE, open_catalog
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import write_set_record
from pipeline.sets.signals.rows import Logits
from pipeline.sharing.push import without_text
from pipeline.sql.read_only_query import select, to_arrow
from pipeline.tasks.metrics import confusion
from pipeline.tasks.target import predicted_scores, softmax
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS
from tests.helpers.token_sets import CODECS_BY_NAME
from tests.helpers.token_sets import write_set as write_token_set

OF_TEXT = ["sentence1", "sentence2", "ids1", "ids2"]


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """A store free to be changed."""
    return Path(shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns(CATALOG_FILE)))


def ask(store: Path, query: str) -> list[tuple[Any, ...]]:
    with open_catalog(store) as connection:
        return select(connection, query).fetchall()


def plan(store: Path, query: str) -> str:
    with open_catalog(store) as connection:
        return str(connection.execute(f"explain {query}").fetchall()[0][1])


def drop_columns(root: Path, names: list[str]) -> None:
    """Leaves columns out of a set's files."""
    record = ExampleSet.open(root).record
    for shard in record.shards:
        table = pq.read_table(root / shard.path, partitioning=None)
        pq.write_table(table.drop_columns(names), root / shard.path)


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_a_view_is_its_files(own_store: Path, name: str) -> None:
    record = ExampleSet.open(own_store / name).record
    tables = [pq.read_table(own_store / name / shard.path, partitioning=None) for shard in record.shards]
    with open_catalog(own_store) as connection:
        view = to_arrow(select(connection, f"select * from {name}"))
        types = select(connection, f"select column_name, column_type from (describe {name})").fetchall()
    key = [("split", "ascending"), ("source_row", "ascending")]
    assert view.sort_by(key).to_pylist() == pa.concat_tables(tables).sort_by(key).to_pylist()
    assert view.column_names == tables[0].column_names
    assert dict(types)["ids1"] == "USMALLINT[]"
    assert dict(types)["split"] == "VARCHAR"


@pytest.mark.parametrize(
    ("query", "files"),
    [
        ("select count(*) from opinion", 2),
        ("select count(*) from opinion where split = 'train'", 1),
        ("select count(*) from opinion where split in ('validation', 'test')", 1),
        ("select count(*) from opinion where split = 'test'", 0),
        ("from calibration(opinion) where split = 'validation'", 1),
        ("select count(*) from examples", 4),
        ("select count(*) from examples where \"set\" = 'roles'", 2),
        ("select count(*) from examples where \"set\" = 'roles' and split = 'train'", 1),
        ("select count(*) from examples where split = 'train'", 2),
        ("select count(*) from examples where label_name(\"set\", label) = 'good' and \"set\" = 'opinion'", 2),
    ],
)
def test_other_splits_and_sets_are_not_read(own_store: Path, query: str, files: int) -> None:
    assert plan(own_store, query).count("Function: READ_PARQUET") == files


def test_a_file_of_another_split_may_even_be_gone(own_store: Path) -> None:
    counts = "select count(sentence1) from opinion where split = 'train'"
    assert ask(own_store, counts) == [(TRAIN_ROWS,)]
    validation = ExampleSet.open(own_store / "opinion").record.shards_of("validation")
    (own_store / "opinion" / validation[-1].path).write_bytes(b"torn")
    assert ask(own_store, counts) == [(TRAIN_ROWS,)]


def test_one_view_holds_all_sets_of_examples(own_store: Path) -> None:
    write_token_set(own_store / "colours", CODECS_BY_NAME["topk"])
    counts = 'select "set", split, count(*) from examples group by all order by all'
    expected = [(name, split, n) for name in ("opinion", "roles") for split, n in (("train", 96), ("validation", 40))]
    assert ask(own_store, counts) == expected
    assert (TRAIN_ROWS, VALIDATION_ROWS) == (96, 40)
    types = dict(ask(own_store, "select column_name, column_type from (describe examples)"))
    assert next(iter(types)) == "set"
    assert (types["ids1"], types["ids2"], types["logits"]) == ("UINTEGER[]", "UINTEGER[]", "FLOAT[]")
    for name in ("opinion", "roles"):
        rows = f'select * exclude "set" from examples where "set" = \'{name}\' order by split, source_row'
        assert ask(own_store, rows) == ask(own_store, f"select * from {name} order by split, source_row")


def test_a_staged_set_is_not_among_them(own_store: Path) -> None:
    record = ExampleSet.open(own_store / "roles").record
    write_set_record(own_store / "roles", record.model_copy(update={"state": "staged"}))
    assert ask(own_store, 'select distinct "set" from examples') == [("opinion",)]


def test_a_set_without_text_has_null_where_it_was(own_store: Path, roles_set: ExampleSet) -> None:
    shutil.rmtree(own_store / "roles")
    with without_text(roles_set.root, roles_set.record) as (bare, _):
        shutil.copytree(bare, own_store / "roles")
    with_text = "select column_name, column_type from (describe opinion)"
    assert ask(own_store, "select column_name, column_type from (describe roles)") == ask(own_store, with_text)
    counts = f"select count(*), {', '.join(f'count({name})' for name in OF_TEXT)} from roles"
    assert ask(own_store, counts) == [(136, 0, 0, 0, 0)]
    rows = ask(own_store, "select logits from roles where split = 'train' order by source_row")
    assert [list(row) for (row,) in rows] == roles_set.read("train", ("logits",)).column("logits").to_pylist()
    assert ask(own_store, "select count(*), count(sentence1) from examples") == [(272, 136)]


def test_a_set_without_other_columns_is_left_out(own_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drop_columns(own_store / "roles", ["label", "logits"])
    assert ask(own_store, 'select "set" from sets') == [("opinion",)]
    assert "2 logits" in capsys.readouterr().err.replace("\n", " ")


def test_names_of_classes(own_store: Path) -> None:
    (own_store / "roles").rename(own_store / "Who-is.who")
    names = ask(own_store, "select label, label_name('opinion', label) from opinion group by all order by all")
    assert names == [(0, "bad"), (1, "good")]
    odd = "select label_name('Who-is.who', 0), label_name('who_is_who', 1), label_name('who_is_who', 2)"
    assert ask(own_store, odd) == [("different", "same", None)]
    assert ask(own_store, "select label_name('nobody', 0), label_name('opinion', null)") == [(None, None)]
    by_set = 'select "set", label_name("set", label) as name from examples group by all order by all'
    pairs = [("Who-is.who", "different"), ("Who-is.who", "same"), ("opinion", "bad"), ("opinion", "good")]
    assert ask(own_store, by_set) == pairs


def renamed(root: Path, texts: tuple[tuple[str, ...], ...], label: str, names: tuple[str, ...]) -> ExampleSet:
    """A set whose task has other names of columns and labels."""
    record = ExampleSet.open(root).record
    assert record.task is not None
    task = record.task.model_copy(update={"text_columns": texts, "label_columns": (label,)})
    signals = record.signals.model_copy(
        update={"logits": Logits(target=record.target.model_copy(update={"names": names}))}
    )
    write_set_record(root, record.model_copy(update={"task": task, "signals": signals}))
    return ExampleSet.open(root)


def test_rows_have_the_users_names_of_columns_and_labels(own_store: Path) -> None:
    opened = renamed(own_store / "opinion", (("message", "text"),), 'the "mood"', ("it's bad", "good"))
    logits_NC, label_N, _ = opened.gold("validation")
    names = opened.record.target.names
    found = ask(own_store, "select * from opinion_named where split = 'validation' order by source_row")
    texts = opened.read("validation", ("sentence1",)).column("sentence1").to_pylist()
    assert [row[3:6] for row in found] == [
        (text, names[gold], names[answer])
        for text, gold, answer in zip(texts, label_N, logits_NC.argmax(axis=1), strict=True)
    ]
    assert [row[6] for row in found] == pytest.approx(softmax(logits_NC).max(axis=1).tolist(), abs=1e-6)
    with open_catalog(own_store) as connection:
        columns = select(connection, "select column_name from (describe opinion_named)").fetchall()
    assert [name for (name,) in columns][3:] == ["message", 'the "mood"', "teacher", "confidence"]


def test_the_confusion_has_a_column_for_each_label(own_store: Path) -> None:
    opened = renamed(own_store / "roles", (("split",), ("teacher",)), "Gold", ("same", "other's"))
    logits_NC, label_N, _ = opened.gold("validation")
    counts_CC = confusion(label_N, logits_NC.argmax(axis=1), 2).tolist()
    query = "select gold, * exclude (split, gold) from roles_confusion where split = 'validation'"
    assert ask(own_store, query) == [("same", *counts_CC[0]), ("other's", *counts_CC[1])]
    with open_catalog(own_store) as connection:
        columns = select(connection, "select column_name from (describe roles_named)").fetchall()
    # The user's column `split` is not that of the set, and `teacher` is the second text.
    expected = ["split", "source_row", "variant", "sentence1", "teacher", "Gold", "teacher_label", "confidence"]
    assert [name for (name,) in columns] == expected


def test_scores_are_beside_those_of_the_teacher(ratings: dict[str, ExampleSet]) -> None:
    store = ratings["score"].root.parent
    for kind, logit_set in ratings.items():
        logits_NC, _, score_N = logit_set.gold("validation")
        found = ask(
            store, f"select score, teacher, difference from {kind}_named where split = 'validation' order by source_row"
        )
        predicted_N = predicted_scores(logit_set.record.target, logits_NC)
        expected = np.stack([score_N, predicted_N, np.abs(predicted_N - score_N)], axis=1)
        assert np.array(found) == pytest.approx(expected, abs=1e-5)
