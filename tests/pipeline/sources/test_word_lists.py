"""Rows of labelled words, as they come in and what is refused in them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.sources import load_source, load_word_source
from pipeline.tasks.task import Task, load_task
from tests.helpers.messages import naming

MANIFEST = """
name: names
type: token_labels
columns: {sentence1: tokens, label: tags}
labels: [O, B-PER, I-PER, B-LOC]
metrics: [span_f1, accuracy]
splits: {train: }
"""
ROW = {"tokens": ["Ann", "Lee", "left"], "tags": ["B-PER", "I-PER", "O"]}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "names.yaml").write_text(MANIFEST)
    return load_task(manifest=tmp_path / "names.yaml")


def write(folder: Path, *rows: object) -> Path:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_names_and_numbers_mean_the_same(task: Task, tmp_path: Path) -> None:
    named = load_word_source(task, write(tmp_path, ROW, {"tokens": ["x"], "tags": None})).splits["train"]
    numbered = load_word_source(task, write(tmp_path, ROW | {"tags": [1, 2, 0]})).splits["train"]
    assert named.column("label").to_pylist() == [[1, 2, 0], None]
    assert numbered.column("label").to_pylist() == [[1, 2, 0]]
    assert numbered.column("sentence1").to_pylist() == [ROW["tokens"]]
    assert numbered.column("sentence2").null_count == 1


@pytest.mark.parametrize("tags", [None, [-1, -1, -1], "-1", "-"])
def test_a_split_without_any_gold(task: Task, tmp_path: Path, tags: object) -> None:
    rows = load_word_source(task, write(tmp_path, ROW | {"tags": tags})).splits["train"]
    assert rows.column("label").to_pylist() == [None]


def test_texts_are_split_at_spaces(task: Task, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("tokens,tags\nAnn  Lee left ,B-PER I-PER O\n")
    rows = load_word_source(task, tmp_path).splits["train"]
    assert rows.column("sentence1").to_pylist() == [ROW["tokens"]]
    assert rows.column("label").to_pylist() == [[1, 2, 0]]


def test_an_empty_text_has_no_words_and_in_place_of_labels_no_gold(task: Task, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('tokens,tags\nAnn left,B-PER O\n"",\n" ",\nAnn left,\n')
    source = load_word_source(task, tmp_path)
    assert source.splits["train"].column("sentence1").to_pylist() == [["Ann", "left"], [], [], ["Ann", "left"]]
    assert source.splits["train"].column("label").to_pylist() == [[1, 0], None, None, None]
    assert any("'tokens' has no word in rows 1, 2" in warning for warning in source.warnings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tags": ["B-PER", "I-PER"]}, "row 1 has 3 words and 2 labels"),
        ({"tags": ["B-PER", "I-PER", "B-ORG"]}, "label 'B-ORG' in row 1"),
        ({"tags": [1, 2, 4]}, "label 4 in row 1"),
        ({"tags": [1, 2, None]}, "label None in row 1"),
        ({"tokens": ["Ann", None, "left"]}, "row 1"),
        ({"tokens": None}, "row 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_row(
    task: Task, tmp_path: Path, wrong: dict[str, list[object]], message: str
) -> None:
    is_numbered = isinstance(wrong.get("tags", [""])[0], int)
    row = {"tokens": ROW["tokens"], "tags": [0, 0, 0] if is_numbered else ["O", "O", "O"]}
    with pytest.raises(DataError, match=naming("'names'", "train.jsonl: ")) as error:
        load_word_source(task, write(tmp_path, row, row | wrong))
    assert message in str(error.value)


def test_lists_of_something_else_are_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("train.jsonl: ", "'tokens'")):
        load_word_source(task, write(tmp_path, {"tokens": 3, "tags": [0]}))
    with pytest.raises(DataError, match=naming("train.jsonl: label", "int64")):
        load_word_source(task, write(tmp_path, {"tokens": ["a"], "tags": 0}))


def test_a_span_that_begins_inside_is_told(task: Task, tmp_path: Path) -> None:
    source = load_word_source(
        task, write(tmp_path, ROW, ROW | {"tags": ["O", "I-PER", "O"]}, {"tokens": [], "tags": []})
    )
    assert any("in row 1" in warning for warning in source.warnings)
    assert any("'tokens' has no word in row 2" in warning for warning in source.warnings)


def test_each_kind_of_rows_has_its_way_in(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("'names'", "docs/labels.md")):
        load_source(task, write(tmp_path, ROW))
    with pytest.raises(ConfigError, match=naming("'sst2'", "classification")):
        load_word_source(load_task("sst2"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("labels: [O, PER]", "'PER'"),
        ("labels: [B-PER, I-PER]", " O"),
        ("metrics: [f1]", "span_f1, accuracy"),
        ("columns: {sentence1: tokens, sentence2: more, label: tags}", "sentence"),
        ("columns: {sentence1: tokens}", "label"),
        ("labels: [O, B-PER]\naugment: mask-pos", "variants"),
    ],
)
def test_manifests_that_do_not_fit(tmp_path: Path, change: str, message: str) -> None:
    key = change.partition(":")[0]
    lines = [change if line.startswith(f"{key}:") else line for line in MANIFEST.splitlines()]
    (tmp_path / "names.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError) as error:
        load_task(manifest=tmp_path / "names.yaml")
    assert message in str(error.value)


def test_texts_of_words_may_be_categories(task: Task, tmp_path: Path) -> None:
    texts = [pa.array([text]).dictionary_encode() for text in ("Ann Lee left", "B-PER I-PER O")]
    pq.write_table(pa.table(texts, ["tokens", "tags"]), tmp_path / "train.parquet")
    rows = load_word_source(task, tmp_path).splits["train"]
    assert rows.column("sentence1").to_pylist() == [ROW["tokens"]]
    assert rows.column("label").to_pylist() == [[1, 2, 0]]
