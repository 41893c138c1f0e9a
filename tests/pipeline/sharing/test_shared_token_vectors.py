"""Token vectors that are shared: with a set, without its text, and joined with the receiver's rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.files import sha256
from pipeline.query.catalog import open_catalog
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, read_set_record
from pipeline.sets.set_settings import JoinSettings
from pipeline.sets.signals.side_files import VOCABULARY_FILE
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.sets.verify import verify_shards
from pipeline.sharing.join import join
from pipeline.sql.read_only_query import select
from tests.helpers.messages import naming
from tests.helpers.places import contents, fetch, objects, send


def test_they_travel_with_the_set_and_only_once(
    opinion_set: ExampleSet, opinion_vectors: ExampleSet, place: str, tmp_path: Path
) -> None:
    send(opinion_set.root, place)
    fetch(place, tmp_path / "store")
    added = send(opinion_vectors.root, place)
    assert set(added.sent) == {VOCABULARY_FILE, "README.md"}
    assert objects(place) == contents(opinion_vectors.root)
    assert send(opinion_vectors.root, place).sent == ()
    pulled = fetch(place, tmp_path / "store")
    assert set(pulled.fetched) == {VOCABULARY_FILE, "tokenizer.json"}
    assert contents(pulled.root) == contents(opinion_vectors.root)
    assert fetch(place, tmp_path / "store").fetched == ()


def test_a_set_without_them_takes_them_away(
    opinion_set: ExampleSet, opinion_vectors: ExampleSet, place: str, tmp_path: Path
) -> None:
    send(opinion_vectors.root, place)
    send(opinion_set.root, place)
    assert objects(place) == contents(opinion_set.root)


def test_a_set_without_text_keeps_the_vectors_and_not_the_counts(
    opinion_vectors: ExampleSet, work: Path, tmp_path: Path
) -> None:
    send(opinion_vectors.root, str(tmp_path / "there"), without_text=True)
    pulled = fetch(str(tmp_path / "there"), tmp_path / "store")
    before, blind = (read_token_vectors(r, read_set_record(r)) for r in (opinion_vectors.root, pulled.root))
    assert before is not None
    assert blind is not None
    np.testing.assert_array_equal(blind.vector_VW, before.vector_VW)
    assert before.count_V.sum() > blind.count_V.sum() == 0
    assert pq.read_table(pulled.root / VOCABULARY_FILE).column("count").null_count == len(blind.count_V)
    flags: dict[str, Any] = {"manifest": work / "opinion.yaml", "store": tmp_path, "data": work / "data"}
    found = join(JoinSettings(set=str(pulled.root), name="joined", **flags), "distill join")
    assert contents(found.root)[VOCABULARY_FILE] == contents(opinion_vectors.root)[VOCABULARY_FILE]
    assert found.record.signals == opinion_vectors.record.signals


def test_sql_has_them_as_numbers(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    shutil.copytree(opinion_vectors.root, tmp_path / "my-set")
    with open_catalog(tmp_path) as connection:
        rows = select(connection, "select id, token, count, vector from my_set_token_vectors order by id").fetchall()
    stored = read_token_vectors(opinion_vectors.root, opinion_vectors.record)
    assert stored is not None
    np.testing.assert_array_equal(np.array([row[3] for row in rows]), stored.vector_VW.astype(np.float32))
    assert [row[2] for row in rows] == stored.count_V.tolist()


def test_sql_leaves_a_set_with_torn_vectors_out(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    path = shutil.copytree(opinion_vectors.root, tmp_path / "opinion") / VOCABULARY_FILE
    path.write_bytes(b"PAR1")
    with open_catalog(tmp_path) as connection:
        assert select(connection, "select count(*) from sets").fetchall() == [(0,)]


def changed_table(table: pa.Table, change: str) -> pa.Table:
    """The same table with one thing that cannot be."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    if change == "id":
        columns["id"][3] = 4
    elif change == "token":
        columns["token"][3] = "<script>"
    elif change == "count":
        columns["count"][3] = -1
    elif change == "null count":
        columns["count"][3] = None
    elif change == "vector":
        columns["vector"][3][5] = int(np.float16("nan").view(np.uint16))
    else:
        columns = {name: values[:-1] for name, values in columns.items()}
    return pa.table(columns, schema=table.schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("id", r"token_vectors\.parquet: its ids"),
        ("token", naming("token_vectors.parquet: ", "tokenizer.json", "id 0")),
        ("count", naming("token_vectors.parquet: ", "count", "id 0")),
        ("null count", naming("token_vectors.parquet: ", "counts")),
        ("vector", naming("token_vectors.parquet: ", "id 3", "NaN")),
        ("rows", "token_vectors: "),
    ],
)
def test_a_stranger_s_file_is_looked_into(
    change: str, message: str, opinion_vectors: ExampleSet, tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "there")
    path = root / VOCABULARY_FILE
    table = changed_table(pq.read_table(path), change)
    pq.write_table(table, path)
    record = read_record(root / FILE_NAME)
    file = {"rows": table.num_rows, "bytes": path.stat().st_size, "sha256": sha256(path)}
    record["signals"]["token_vectors"]["file"] = file
    (root / FILE_NAME).write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match=message):
        fetch(str(root), tmp_path / "store")
    assert not (tmp_path / "store" / "opinion").exists()


def test_a_file_of_another_set_is_refused(
    opinion_vectors: ExampleSet, roles_vectors: ExampleSet, tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "there")
    shutil.copy(roles_vectors.root / VOCABULARY_FILE, root / VOCABULARY_FILE)
    values = read_record(root / FILE_NAME)
    values["signals"]["token_vectors"] = read_record(roles_vectors.root / FILE_NAME)["signals"]["token_vectors"]
    (root / FILE_NAME).write_text(json.dumps(values))
    with pytest.raises(IntegrityError, match=naming("token_vectors.parquet: ", "footer")):
        verify_shards(root, read_set_record(root))


def test_token_vectors_alone_are_no_set(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "there")
    values = read_record(root / FILE_NAME)
    del values["signals"]["logits"]
    (root / FILE_NAME).write_text(json.dumps(values))
    with pytest.raises(IntegrityError, match=naming("there/distill.json: ", "signals: ")):
        read_set_record(root)
