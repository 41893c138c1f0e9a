"""Sets of labelled words: what is wrong in one is found, by ``verify`` and by whoever reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, IntegrityError
from pipeline.sets.reader import open_set
from pipeline.sets.verify import verify_shards
from pipeline.sets.verify_words import MAX_TEXT_BYTES, WordsCheck, words_bomb
from pipeline.sets.word_reader import WordSet
from tests.helpers.words import dump_entities, write_random_teacher

Row = dict[str, Any]


@pytest.fixture(scope="module")
def entities(tmp_path_factory: pytest.TempPathFactory) -> WordSet:
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
        (
            lambda row: row | {"source_row": row["source_row"] + 1},
            "not the source rows 0 to 15, each once and in order",
        ),
        (longer("ids", 5), "not as many word_ids as ids"),
        (first("ids", 60_000), "beyond the tokenizer's vocabulary"),
        (first("word_ids", 1000), "of a word that its sentence has not"),
        (first("word_ids", -1), "of a word that its sentence has not"),
        (first("word_ids", 3), "do not ascend"),
        (longer("label", 0), "not one label for each word"),
        (first("label", 7), "has labels from 0 to 7, but the task has 7 labels"),
        (first("label", None), "label is null somewhere"),
        (first("words", None), "words is null somewhere"),
        (first("words", "other"), "text_hash of source row 0 does not belong to its words"),
        (longer("logits", [0.0] * 7), "not as many logits as tokens"),
        (first("logits", [float("inf")] * 7), "logits of source row 0 are not finite"),
    ],
)
def test_rows_that_cannot_be_a_sets_are_found(
    entities: WordSet, tmp_path: Path, change: Callable[[Row], Row], problem: str
) -> None:
    shard = next(shard for shard in entities.record.shards if shard.split == "validation")
    table = pq.read_table(entities.root / shard.path, partitioning=None)
    rows = table.to_pylist()
    rows[0] = change(rows[0])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "shard.parquet")
    found = WordsCheck(entities.record).shard_problem(shard, tmp_path / "shard.parquet")
    assert found is not None
    assert problem in found
    assert WordsCheck(entities.record).shard_problem(shard, entities.root / shard.path) is None


def test_other_gold_than_the_sources_is_found(entities: WordSet) -> None:
    other = entities.record.splits["train"].model_copy(update={"rows_sha256": "0" * 64})
    record = entities.record.model_copy(update={"splits": {**entities.record.splits, "train": other}})
    verify_shards(entities.root, entities.record)
    with pytest.raises(IntegrityError, match="split 'train': its words and gold are not those"):
        verify_shards(entities.root, record)


def test_a_long_word_a_thousand_times_is_not_unpacked(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * (MAX_TEXT_BYTES // 500)])
    column = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), words)
    pq.write_table(pa.table({"words": column}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < MAX_TEXT_BYTES // 100
    found = words_bomb(tmp_path / "bomb.parquet")
    assert found is not None
    assert "the words of 1 rows have more than" in found


def test_readers_of_texts_refuse_it_by_name(entities: WordSet) -> None:
    with pytest.raises(ConfigError, match="holds logits of words"):
        open_set(entities.root)
