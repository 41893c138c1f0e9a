import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import DataError, PassingError, QueryError
from pipeline.query import catalog
from pipeline.query.catalog import CATALOG_FILE, build_catalog, open_catalog
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, write_set_record
from pipeline.sql.database import view_name
from pipeline.sql.read_only_query import select
from tests.helpers.messages import naming


@pytest.fixture
def own_store(store: Path, tmp_path: Path) -> Path:
    """A store free to be changed."""
    shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns(CATALOG_FILE))
    return tmp_path / "store"


def ask(store: Path, query: str) -> list[tuple[Any, ...]]:
    with open_catalog(store) as connection:
        return select(connection, query).fetchall()


def test_a_folder_that_is_called_like_a_column_is_no_column(opinion_set: ExampleSet, tmp_path: Path) -> None:
    store = tmp_path / "split=dev" / "label=1"
    shutil.copytree(opinion_set.root, store / "opinion")
    question = "select split, label, count(*) as n from opinion group by all order by all"
    answer = opinion_set.sql(question)
    assert [tuple(row.values()) for row in ExampleSet.open(store / "opinion").sql(question)] == ask(store, question)
    assert ExampleSet.open(store / "opinion").sql(question) == answer
    assert ExampleSet.open(store / "opinion").read("train", ("label",)).num_rows == opinion_set.record.rows_of("train")


@pytest.mark.parametrize("num_bytes", [2**14, 2**16])
def test_a_catalog_that_does_not_fit_is_none(own_store: Path, num_bytes: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        with pytest.raises(DataError, match=r"catalog\.duckdb: .*File too large"):
            ask(own_store, "select count(*) from opinion")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in own_store.iterdir()) == ["opinion", "roles"]
    assert ask(own_store, "select count(*) from opinion") == [(136,)]


def test_a_full_disk_is_told(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TABLES", "copy (select * from range(100000)) to '/dev/full'")
    with pytest.raises(PassingError, match=r"catalog\.duckdb: "):
        ask(own_store, "select count(*) from opinion")


def test_what_a_killed_query_left_beside_the_catalog_goes_with_the_next(own_store: Path) -> None:
    for name in (f".{CATALOG_FILE}.17.distill-tmp", f".{CATALOG_FILE}.17.distill-tmp.wal"):
        (own_store / name).touch()
    assert ask(own_store, "select count(*) from opinion") == [(136,)]
    assert sorted(path.name for path in own_store.iterdir()) == [CATALOG_FILE, "opinion", "roles"]


def test_tables(own_store: Path, opinion_set: ExampleSet) -> None:
    query = 'select "set", view, task, state, "rows", labels, path from sets order by 1'
    names = {"opinion": ["bad", "good"], "roles": ["different", "same"]}
    assert ask(own_store, query) == [
        (name, name, name, "verified", 136, labels, str(own_store / name)) for name, labels in names.items()
    ]
    shards = ask(
        own_store, 'select split, "index", stop_row - start_row, sha256, path from shards where "set" = \'opinion\''
    )
    assert shards == [
        (s.split, s.index, s.rows, s.sha256, str(own_store / "opinion" / s.path)) for s in opinion_set.record.shards
    ]
    teachers = ask(own_store, "select weights_sha256, sets, num_parameters from teachers order by sets")
    teacher = opinion_set.record.teacher  # both fixtures' classifiers have the same weights: one teacher
    assert teachers == [(teacher.weights_sha256, ["opinion", "roles"], teacher.num_parameters)]
    accuracy = ask(own_store, "select (scores ->> '$.train.accuracy')::double from sets where \"set\" = 'opinion'")
    assert accuracy == [(opinion_set.record.scores["train"]["accuracy"],)]


def test_views_hold_the_rows(own_store: Path, opinion_set: ExampleSet) -> None:
    expected = opinion_set.read("train", ("source_row", "sentence1", "logits")).to_pylist()
    with open_catalog(own_store) as connection:
        query = "select source_row, sentence1, logits from opinion where split = 'train' order by source_row"
        assert select(connection, query).to_arrow_table().to_pylist() == expected
    assert ask(own_store, "select count(*) from opinion join roles using (split, source_row)") == [(136,)]
    agreeing = "select avg((argmax(logits) = label)::int) from opinion where split = 'train'"
    assert ask(own_store, agreeing)[0][0] == pytest.approx(opinion_set.record.scores["train"]["accuracy"])


def test_unchanged_store_is_not_indexed_again(own_store: Path) -> None:
    ask(own_store, "select 1")
    before = (own_store / CATALOG_FILE).stat().st_ino
    ask(own_store, "select 1")
    assert (own_store / CATALOG_FILE).stat().st_ino == before


def test_catalog_follows_the_store(own_store: Path) -> None:
    names = 'select "set" from sets order by 1'
    assert ask(own_store, names) == [("opinion",), ("roles",)]
    shutil.copytree(own_store / "opinion", own_store / "opinion-2")
    assert ask(own_store, names) == [("opinion",), ("opinion-2",), ("roles",)]
    assert ask(own_store, "select count(*) from opinion_2") == [(136,)]
    shutil.rmtree(own_store / "roles")
    assert ask(own_store, names) == [("opinion",), ("opinion-2",)]
    record = ExampleSet.open(own_store / "opinion").record
    write_set_record(own_store / "opinion", record.model_copy(update={"notes": ("changed",)}))
    assert ask(own_store, "select notes from sets where \"set\" = 'opinion'") == [(["changed"],)]


def test_what_has_not_changed_is_not_read_again(own_store: Path) -> None:
    names = 'select "set" from sets order by 1'
    assert ask(own_store, names) == [("opinion",), ("roles",)]
    shard = max((own_store / "roles" / "examples").iterdir())
    content = shard.read_bytes()
    shard.write_bytes(b"torn")  # whoever looks at it leaves the set out
    shutil.copytree(own_store / "opinion", own_store / "opinion-2")
    assert ask(own_store, names) == [("opinion",), ("opinion-2",), ("roles",)]
    shard.write_bytes(content)
    assert ask(own_store, "select count(*) from roles") == [(136,)]


def test_a_catalog_that_was_put_in_order_is_the_one_that_is_built_anew(own_store: Path, token_store: Path) -> None:
    """The same rows in every table, the same views; sets that come, go, change and take another's name."""
    ask(own_store, "select 1")
    shutil.copytree(token_store / "topk", own_store / "opinion-2")
    ask(own_store, "select 1")
    shutil.rmtree(own_store / "opinion-2")
    (own_store / "opinion").rename(own_store / "opinion-2")  # another set, and one gone
    shutil.copytree(token_store / "sampled", own_store / "sampled")
    write_set_record(
        own_store / "roles", ExampleSet.open(own_store / "roles").record.model_copy(update={"notes": ("new",)})
    )
    contents = []
    for _ in range(2):
        rows = ask(own_store, "select * from examples order by all")
        with duckdb.connect(str(own_store / CATALOG_FILE), read_only=True) as connection:
            views = connection.execute("select view_name, sql from duckdb_views() where not internal order by 1")
            tables = ("(select * exclude (created) from sets)", "shards", "teachers", "vocabulary", "set_states")
            contents.append(
                [rows, views.fetchall()]
                + [connection.execute(f"select * from {table} order by all").fetchall() for table in tables]
            )
        (own_store / CATALOG_FILE).unlink()
    assert contents[0] == contents[1]
    assert {name for name, _ in contents[0][1]} >= {"examples", "opinion_2", "roles", "sampled", "sampled_words"}


def test_moved_store_and_damaged_catalog_are_mended(own_store: Path) -> None:
    ask(own_store, "select 1")
    moved = own_store.rename(own_store.parent / "it's [1]")
    assert ask(moved, "select count(*) from roles") == [(136,)]
    (moved / CATALOG_FILE).write_bytes(b"not a database")
    assert ask(moved, "select count(*) from roles") == [(136,)]
    assert [path.name for path in moved.iterdir() if path.name.startswith(".")] == []


def test_staged_set_is_listed_but_has_no_view(own_store: Path) -> None:
    record = ExampleSet.open(own_store / "roles").record
    write_set_record(own_store / "roles", record.model_copy(update={"state": "staged"}))
    assert ask(own_store, 'select "set", state from sets order by 1') == [("opinion", "verified"), ("roles", "staged")]
    with pytest.raises(QueryError, match=naming("roles", "examples, opinion")):
        ask(own_store, "select * from roles")
    with pytest.raises(QueryError, match=naming("the opinion", "'opinion'")):
        ask(own_store, 'select * from "the opinion"')
    with pytest.raises(QueryError, match=naming("opinions", "'opinion'")):
        ask(own_store, "select * from opinions")


def test_names_that_become_one_view_are_refused(own_store: Path) -> None:
    shutil.copytree(own_store / "roles", own_store / "a.b")
    shutil.copytree(own_store / "roles", own_store / "A-b")
    assert view_name("a.b") == view_name("A-b") == "a_b"
    with pytest.raises(DataError, match=naming("A-b", "a.b", "'a_b'")):
        build_catalog(own_store)


@pytest.mark.parametrize("name", ["sets", "shards", "Teachers", "catalog_state", "Examples"])
def test_set_named_like_a_table_is_refused(own_store: Path, name: str) -> None:
    (own_store / "roles").rename(own_store / name)
    with pytest.raises(DataError, match=naming(name, "'" + name.lower() + "'")):
        build_catalog(own_store)


@pytest.mark.parametrize("damage", ["manifest", "version", "shard", "no shards"])
def test_damaged_set_is_left_out_with_a_warning(
    own_store: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = own_store / "roles" / FILE_NAME
    record = read_record(path)
    if damage == "manifest":
        path.write_text("{")
    elif damage == "version":
        path.write_text(json.dumps(record | {"format_version": 99}))
    elif damage == "shard":
        for shard in (own_store / "roles" / "examples").iterdir():
            shard.write_bytes(b"torn")
    else:
        path.write_text(json.dumps(record | {"shards": []}))
    assert [m.name for m in build_catalog(own_store)] == ["opinion"]
    assert str(own_store / "roles") in capsys.readouterr().err
    assert ask(own_store, "select count(*) from opinion") == [(136,)]
    assert "warning: " not in capsys.readouterr().err
    shutil.copytree(own_store / "opinion", own_store / "opinion-2")
    assert ask(own_store, 'select count(*), count(distinct "set") from examples') == [(272, 2)]
    assert str(own_store / "roles") in capsys.readouterr().err


def test_queries_cannot_change_sets(own_store: Path, opinion_set: ExampleSet) -> None:
    shard = own_store / "opinion" / opinion_set.record.shards[0].path
    before = shard.read_bytes()
    for form in ("{}", "explain analyze {}", "with t as ({}) select 1", "select 1; {}"):
        try:
            with pytest.raises(QueryError):
                ask(own_store, form.format(f"copy (select 1) to '{shard}' (use_tmp_file false)"))
        finally:
            assert shard.read_bytes() == before


def test_missing_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("gone: ", "distill teacher-dump")):
        build_catalog(tmp_path / "gone")


def test_empty_store(tmp_path: Path) -> None:
    assert build_catalog(tmp_path) == []
    assert ask(tmp_path, "select count(*) from sets") == [(0,)]


def test_asking_about_sets_and_verifying_them_needs_no_torch() -> None:
    code = "import sys, pipeline.query.catalog, pipeline.sharing.remote_folder; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["False"]
