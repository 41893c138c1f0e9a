"""Sets of sentences on disk: verified, described on a card, read by others, queried, and sent to other places."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pyarrow as pa
import pytest
import yaml

from distill.apps.report.set_page import set_page
from pipeline.errors import ConfigError, IntegrityError
from pipeline.query.catalog import open_catalog
from pipeline.sets.card import card_text
from pipeline.sets.codecs.vectors import BASIS_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.record import changed, read_set_record
from pipeline.sets.verify import verify_shards
from tests.helpers.commands import invoke
from tests.helpers.damage import damage
from tests.helpers.messages import naming
from tests.helpers.places import contents, fetch, send
from tests.helpers.sentence_sets import rewrite, rows_of, with_value

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def own(vector_store: Path, tmp_path: Path) -> Callable[[str], SentenceSet]:
    """Opens a copy of a set, free to be changed."""
    return lambda name: SentenceSet.open(Path(shutil.copytree(vector_store / name, tmp_path / "own" / name)))


def test_a_flipped_bit_of_a_shard_is_found(own: Callable[[str], SentenceSet]) -> None:
    sentence_set = own("int8")
    damage(sentence_set.root / sentence_set.record.shards[0].path)
    with pytest.raises(IntegrityError, match=naming("sentences/validation-00000-of-00001.parquet", "SHA-256")):
        verify_shards(sentence_set.root, sentence_set.record)
    assert invoke("verify", sentence_set.root).exit_code != 0


def test_a_flipped_bit_of_the_basis_is_found(own: Callable[[str], SentenceSet]) -> None:
    sentence_set = own("pca")
    verify_shards(sentence_set.root, sentence_set.record)
    damage(sentence_set.root / BASIS_FILE)
    with pytest.raises(IntegrityError, match=BASIS_FILE):
        verify_shards(sentence_set.root, sentence_set.record)
    with pytest.raises(IntegrityError, match=BASIS_FILE):
        sentence_set.decode(rows_of(sentence_set.root, "train"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("int8", with_value("scale", 1, float("nan")), "scale"),
        ("float16", with_value("vector", 1, [0x7C00] * 32), "NaN"),
        ("float16", with_value("vector", 1, [None] * 32), "null"),
        ("pca", with_value("vector", 1, [None] * 12), "null"),
        ("int8", with_value("ids", 0, [60_000]), "vocabulary"),
        ("int8", with_value("ids", 0, [1] * 33), "32 tokens"),
        ("int8", with_value("ids", 0, [1, None]), "ids is null"),
        ("int8", with_value("source_row", 0, 10_000), "keys"),
        ("int8", with_value("source_row", -1, 10_000), "source rows"),
        ("int8", lambda table: table.take([1, 0, *range(2, table.num_rows)]), "keys"),
        ("int8", with_value("split", 0, "other"), "split"),
    ],
)
def test_what_cannot_be_is_found(own: Callable[[str], SentenceSet], name: str, change: Change, message: str) -> None:
    sentence_set = own(name)
    record = rewrite(sentence_set, change)
    with pytest.raises(IntegrityError, match=message):
        verify_shards(sentence_set.root, record)


@pytest.mark.parametrize(
    ("parts", "message"), [({"corpus": None}, "corpus and task: "), ({"has_text": False}, "has_text: ")]
)
def test_a_record_that_does_not_fit_is_refused(vector_store: Path, parts: dict[str, Any], message: str) -> None:
    record = SentenceSet.open(vector_store / "int8").record
    with pytest.raises(ValueError, match=message):
        changed(record, **parts)


def test_other_commands_say_what_it_is(vector_store: Path) -> None:
    with pytest.raises(ConfigError, match=naming("int8", "distill pretrain-student")):
        ExampleSet.open(vector_store / "int8")
    with pytest.raises(ConfigError, match=naming("int8", "--signal mlm")):
        MaskedWordSet.open(vector_store / "int8")


@pytest.mark.parametrize("name", ["float16", "int8", "pca"])
def test_the_card_says_how_to_read_it(vector_store: Path, name: str) -> None:
    sentence_set = SentenceSet.open(vector_store / name)
    text = card_text(sentence_set.record)
    assert "{{" not in text
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["task_categories"] == ["feature-extraction"]
    assert (sentence_set.root / "README.md").read_text() == text
    query = text.split("-- duckdb\n")[1].split("```")[0].replace("PATH", str(vector_store))
    lengths = [len(ids) for ids in rows_of(sentence_set.root, "validation").column("ids").to_pylist()]
    expected = rows_of(sentence_set.root, next(iter(sentence_set.record.splits))).num_rows
    counted = duckdb.execute(query).fetchone()
    assert counted is not None
    assert counted[0] == expected
    assert lengths


def test_datasets_reads_the_folder(vector_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    loaded = datasets.load_dataset(str(vector_store / "int8"), "sentences")
    assert set(loaded) == {"train", "validation"}
    for split, rows in loaded.items():
        assert list(rows) == rows_of(vector_store / "int8", split).to_pylist()


def test_sql_reads_what_is_stored(vector_store: Path) -> None:
    with open_catalog(vector_store) as connection:
        found = connection.execute(
            "select vector, scale from int8 where split = 'train' order by source_row, piece"
        ).fetchall()
        codecs = connection.execute('select "set", codec, corpus from sets order by all').fetchall()
    stored = rows_of(vector_store / "int8", "train")
    assert [list(vector) for vector, _ in found] == stored.column("vector").to_pylist()
    assert [scale for _, scale in found] == stored.column("scale").to_pylist()
    assert codecs == [("float16", "float16", "tiny"), ("int8", "int8", "tiny"), ("pca", "pca-12", "tiny")]


@pytest.mark.parametrize("name", ["int8", "pca"])
def test_it_travels_whole(vector_store: Path, tmp_path: Path, name: str) -> None:
    there = f"file://{tmp_path}/there"
    send(vector_store / name, there)
    pulled = fetch(there, tmp_path / "store")
    assert contents(pulled.root) == contents(vector_store / name)
    assert (BASIS_FILE in contents(pulled.root)) == (name == "pca")


def test_it_may_be_reached_by_a_link(vector_store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(vector_store / "pca")
    verify_shards(link, read_set_record(link))
    linked, whole = SentenceSet.open(link), SentenceSet.open(vector_store / "pca")
    for split in whole.record.splits:
        np.testing.assert_array_equal(linked.decode(rows_of(link, split)), whole.decode(rows_of(whole.root, split)))


def test_a_page_tells_of_it(vector_store: Path) -> None:
    page = set_page(vector_store / "pca")
    assert page.sections[0].facts["codec"] == "pca-12"
    assert "vectors" in page.lead


def test_the_error_in_the_scores_is_that_of_the_codec(vector_store: Path) -> None:
    whole = SentenceSet.open(vector_store / "float16")
    for name in ("int8", "pca"):
        sentence_set = SentenceSet.open(vector_store / name)
        for split, scores in sentence_set.record.scores.items():
            said = whole.decode(rows_of(whole.root, split)).astype(np.float64)
            kept = sentence_set.decode(rows_of(sentence_set.root, split))
            assert scores["squared_error"] == pytest.approx(((said - kept) ** 2).sum() / (said**2).sum(), rel=0.02)
            assert scores["sentences"] == len(said)
