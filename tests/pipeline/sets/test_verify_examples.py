"""Every problem that the verification of a set's rows can name, in a shard that has it and is otherwise sound."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.sets.files import bomb_problem
from pipeline.sets.kinds import examples
from pipeline.sets.kinds.examples import ExampleSet, text_hash
from pipeline.sets.record import read_set_record
from pipeline.sets.verify import verify_shards
from tests.helpers.messages import naming
from tests.helpers.places import send
from tests.helpers.rewritten_shards import recorded, rewrite, with_column

Change = Callable[[pa.Table], pa.Table]


def set_values(name: str, *values: object) -> Change:
    """Puts values into the first rows of a column."""

    def change(table: pa.Table) -> pa.Table:
        column = [*values, *table.column(name).to_pylist()[len(values) :]]
        return with_column(table, name, pa.array(column, table.schema.field(name).type))

    return change


def with_variant(table: pa.Table, **columns: object) -> pa.Table:
    """Adds a variant of the first row."""
    added = table.slice(0, 1)
    for name, value in {"variant": 1, "origin": "mask", "label": None, **columns}.items():
        added = with_column(added, name, pa.array([value], table.schema.field(name).type))
    return pa.concat_tables([table.slice(0, 1), added, table.slice(1)])


def null_logit(table: pa.Table) -> pa.Table:
    flat = pa.array([None, *table.column("logits").combine_chunks().flatten().to_pylist()[1:]], pa.float32())
    return with_column(table, "logits", pa.FixedSizeListArray.from_arrays(flat, 2))


def assert_found(logit_set: ExampleSet, change: Change, *named: str) -> None:
    with pytest.raises(IntegrityError, match=naming(*named)):
        verify_shards(logit_set.root, rewrite(logit_set, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_values("source_row", 23), "24 to 48"),
        (set_values("source_row", 24, 24), "source row 24"),
        (lambda t: with_variant(t, label=1), "variants"),
        (set_values("origin", "mask"), "origin"),
        (set_values("label", 2), "labels from 0 to 2"),
        (set_values("label", -1), "labels from -1 to 1"),
        (set_values("score", float("nan")), "score"),
        (null_logit, "logit"),
        (set_values("ids1", [1] * 33), "ids1"),
        (set_values("ids1", [65535]), "ids1"),
        (set_values("sentence1", None), "sentence"),
        (set_values("sentence2", "second"), "sentence"),
        (set_values("sentence1", "another text"), "text_hash of source row 24"),
        (set_values("text_hash", bytes(16)), "text_hash of source row 24"),
    ],
)
def test_wrong_rows_are_named(own_set: ExampleSet, change: Change, message: str) -> None:
    assert_found(own_set, change, "train-00001-of-00004.parquet", message)


@pytest.mark.parametrize("changed", ["text", "gold"])
def test_other_texts_or_gold_than_the_sources_are_found(own_set: ExampleSet, changed: str) -> None:
    def change(table: pa.Table) -> pa.Table:
        if changed == "gold":
            return set_values("label", 1 - table.column("label")[0].as_py())(table)
        digest = text_hash(own_set.record.tokenizer.sha256, "another text", None)
        return set_values("text_hash", digest)(set_values("sentence1", "another text")(table))

    assert_found(own_set, change, "'train'", "distill.json")


def test_pairs_need_both_sentences(roles_set: ExampleSet, tmp_path: Path) -> None:
    own = ExampleSet.open(Path(shutil.copytree(roles_set.root, tmp_path / "roles")))
    assert_found(own, set_values("sentence2", None), "sentence")


def test_scores_and_bins_have_no_labels(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    for kind, logit_set in ratings.items():
        own = ExampleSet.open(Path(shutil.copytree(logit_set.root, tmp_path / kind)))
        verify_shards(own.root, own.record)
        assert_found(own, set_values("label", 0), "labels from 0 to 0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: set_values("label", *[1] * len(t))(t), "gold"),
        (lambda t: set_values("origin", *["mask"] * len(t))(t), "origin"),
        (lambda t: set_values("origin", *["original"] * len(t))(t), "origin"),
        (lambda t: t.filter(pa.compute.equal(t["variant"], 0)), "variants"),
        (lambda t: set_values("variant", -1)(t), ""),
    ],
)
def test_wrong_variants_are_named(augmented_set: ExampleSet, tmp_path: Path, change: Change, message: str) -> None:
    own = ExampleSet.open(Path(shutil.copytree(augmented_set.root, tmp_path / "own")))
    verify_shards(own.root, own.record)
    assert_found(own, change, message)


def test_rows_are_read_in_batches_and_keys_ascend_across_them(
    own_set: ExampleSet, augmented_set: ExampleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "ROWS_AT_ONCE", 5)
    for logit_set in (own_set, augmented_set):
        verify_shards(logit_set.root, logit_set.record)
    places = [*range(10), 9, *range(11, 24)]  # the tenth row again, at the start of a batch
    assert_found(own_set, lambda t: t.take(places), "source row 33")


def test_texts_that_are_too_long_are_refused(own_set: ExampleSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_TEXT_BYTES", 100)
    with pytest.raises(IntegrityError, match=naming("20 rows", "100 bytes")):
        verify_shards(own_set.root, own_set.record)


def test_sets_without_text_are_checked_as_far_as_they_go(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "blind"), without_text=True)
    blind = ExampleSet(tmp_path / "blind", read_set_record(tmp_path / "blind"))
    assert_found(blind, lambda t: t.slice(1), "source rows 24 to 48")
    assert_found(blind, set_values("label", 7), "labels from 0 to 7")
    assert_found(blind, lambda t: t.append_column("sentence1", pa.nulls(len(t), pa.string())), "columns")


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    zeros = pa.table({"a": np.zeros(40_000_000, dtype=np.int8)})
    pq.write_table(zeros, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 200_000
    assert bomb_problem(pq.read_metadata(path), path) is not None
    pq.write_table(zeros, path, row_group_size=len(zeros))  # run lengths: few bytes even when unpacked
    problem = bomb_problem(pq.read_metadata(path), path)
    assert problem is not None
    assert "40,000,000" in problem
    parts = pa.table({name: np.zeros(25_000_000, dtype=np.int8) for name in "ab"})
    pq.write_table(parts, path, row_group_size=len(parts))  # as many in all, if few in each column
    assert "50,000,000" in (bomb_problem(pq.read_metadata(path), path) or "")


def test_a_bomb_among_the_shards_is_named(own_set: ExampleSet) -> None:
    path = own_set.root / own_set.record.shards[3].path
    table = pq.read_table(path, partitioning=None)  # with its footer
    huge = with_column(table, "sentence1", pa.array(["x" * 2**22] * len(table)))
    pq.write_table(huge, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**18
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet", "bomb")):
        verify_shards(own_set.root, recorded(own_set, 3))
