"""Sets of labelled words: what is wrong in one is found, by ``verify`` and by whoever reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.token_labels import MAX_TEXT_BYTES, TokenLabelSet
from pipeline.sets.verify import verify_shards
from tests.helpers.words import dump_entities, write_random_teacher

Row = dict[str, Any]


@pytest.fixture(scope="module")
def entities(tmp_path_factory: pytest.TempPathFactory) -> TokenLabelSet:
    folder = tmp_path_factory.mktemp("entities")
    write_random_teacher(folder)
    return dump_entities(folder, token_vectors=False)


def longer(name: str, value: object) -> Callable[[Row], Row]:
    return lambda row: row | {name: [*row[name], value]}


def first(name: str, value: object) -> Callable[[Row], Row]:
    return lambda row: row | {name: [value, *row[name][1:]]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row | {"source_row": row["source_row"] + 1}, "source rows 0 to 15"),
        (longer("ids", 5), "word_ids"),
        (first("ids", 60_000), "vocabulary"),
        (first("word_ids", 1000), "word"),
        (first("word_ids", -1), "word"),
        (first("word_ids", 3), "ascend"),
        (longer("label", 0), "label"),
        (first("label", 7), "labels from 0 to 7"),
        (first("label", None), "label"),
        (first("words", None), "words"),
        (first("words", "other"), "text_hash of source row 0"),
        (longer("logits", [0.0] * 7), "logits"),
        (first("logits", [float("inf")] * 7), "logits of source row 0"),
    ],
)
def test_rows_that_cannot_be_a_sets_are_found(
    entities: TokenLabelSet, tmp_path: Path, change: Callable[[Row], Row], problem: str
) -> None:
    shard = next(shard for shard in entities.record.shards if shard.split == "validation")
    table = pq.read_table(entities.root / shard.path, partitioning=None)
    rows = table.to_pylist()
    rows[0] = change(rows[0])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "shard.parquet")
    found = TokenLabelSet.row_kind.check(entities.record).shard_problem(shard, tmp_path / "shard.parquet")
    assert found is not None
    assert problem in found
    assert TokenLabelSet.row_kind.check(entities.record).shard_problem(shard, entities.root / shard.path) is None


def test_other_gold_than_the_sources_is_found(entities: TokenLabelSet) -> None:
    other = entities.record.splits["train"].model_copy(update={"rows_sha256": "0" * 64})
    record = entities.record.model_copy(update={"splits": {**entities.record.splits, "train": other}})
    verify_shards(entities.root, entities.record)
    with pytest.raises(IntegrityError, match="'train'"):
        verify_shards(entities.root, record)


def test_a_long_word_a_thousand_times_is_not_unpacked(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * (MAX_TEXT_BYTES // 500)])
    column = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), words)
    pq.write_table(pa.table({"words": column}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < MAX_TEXT_BYTES // 100
    found = TokenLabelSet.row_kind.file_problem(tmp_path / "bomb.parquet")
    assert found is not None
    assert "words of 1 rows" in found


def test_readers_of_texts_refuse_it_by_name(entities: TokenLabelSet) -> None:
    with pytest.raises(ConfigError, match=entities.root.name):
        ExampleSet.open(entities.root)
