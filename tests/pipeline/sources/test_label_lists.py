import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.sources import load_source, rows_sha256
from pipeline.tasks.task import Task, parse_manifest
from tests.helpers.messages import naming

GOLD = [[0], [], [0, 2], None]


def task(**changes: Any) -> Task:
    values = {
        "name": "mine",
        "type": "multilabel",
        "columns": {"sentence1": "text", "label": "tags"},
        "labels": ["food", "service", "music"],
        "metrics": ["micro_f1", "macro_f1"],
        "splits": {"train": None},
    }
    return Task.model_validate(values | changes)


APART = task(columns={"sentence1": "text"})


def gold(folder: Path, name: str, content: str, of: Task) -> list[list[int] | None]:
    (folder / name).write_text(content)
    labels: list[list[int] | None] = load_source(of, folder).splits["train"].column("label").to_pylist()
    return labels


def problem(folder: Path, name: str, content: str, of: Task) -> str:
    with pytest.raises(DataError) as error:
        gold(folder, name, content, of)
    return str(error.value)


def test_lists_of_names_or_numbers(tmp_path: Path) -> None:
    names = [["food"], [], ["music", "food", "food"], None]
    lines = "".join(json.dumps({"text": "a", "tags": row}) + "\n" for row in names)
    assert gold(tmp_path, "train.jsonl", lines, task()) == GOLD
    (tmp_path / "train.jsonl").unlink()
    pq.write_table(pa.table({"text": ["a"] * 4, "tags": [[0], [], [2, 0], None]}), tmp_path / "train.parquet")
    assert load_source(task(), tmp_path).splits["train"].column("label").to_pylist() == GOLD


@pytest.mark.parametrize("lists", [[[-1], [0, 2], []], [[-1, -1, -1], [1, 0, 1], [0, 0, 0]], ["-1", "food,music", ""]])
@pytest.mark.parametrize("missing", ["-1", "null"])
def test_minus_one_is_no_gold(tmp_path: Path, lists: list[Any], missing: str) -> None:
    lists = [missing, *lists[1:]] if isinstance(lists[0], str) else lists
    lines = "".join(json.dumps({"text": "a", "tags": row}) + "\n" for row in lists)
    assert gold(tmp_path, "train.jsonl", lines, task()) == [None, [0, 2], []]


@pytest.mark.parametrize("missing", ["", "-1", "n/a", "-"])
def test_a_column_per_label_has_the_same_marks_of_missing_gold(tmp_path: Path, missing: str) -> None:
    lines = f"text,food,service,music\na,{missing},{missing},{missing}\nb,1,0,1\n"
    assert gold(tmp_path, "train.csv", lines, APART) == [None, [0, 2]]


@pytest.mark.parametrize("separator", [",", "|", " / "])
def test_names_in_one_text(tmp_path: Path, separator: str) -> None:
    texts = ["food", "", f"music{separator} food", "-"]
    lines = "text,tags\n" + "".join(f'a,"{text}"\n' for text in texts)
    assert gold(tmp_path, "train.csv", lines, task(label_separator=separator)) == GOLD


@pytest.mark.parametrize(
    ("yes", "no", "unknown"), [("1", "0", "-1"), ("True", "False", ""), ("yes", "No", "nan"), ("1.0", "0", "")]
)
def test_a_column_a_label(tmp_path: Path, yes: str, no: str, unknown: str) -> None:
    rows = [[unknown if row is None else yes if k in row else no for k in range(3)] for row in GOLD]
    lines = "text,music,service,food\n" + "".join(f"a,{','.join(reversed(row))}\n" for row in rows)
    if yes == "1.0":
        numbers = {
            name: [None if row is None else float(k in row) for row in GOLD] for k, name in enumerate(APART.labels)
        }
        pq.write_table(pa.table({"text": ["a"] * 4} | numbers), tmp_path / "train.parquet")
        assert load_source(APART, tmp_path).splits["train"].column("label").to_pylist() == GOLD
        (tmp_path / "train.parquet").unlink()
    assert gold(tmp_path, "train.csv", lines, APART) == GOLD


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    wrong = problem(tmp_path, "train.csv", 'text,tags\na,food\nb,"food,drinks"\n', task())
    assert "label 'drinks' in row 1" in wrong
    assert "row 1" in problem(tmp_path, "train.csv", "text,food,service,music\na,1,0,0\nb,1,,0\n", APART)
    assert "'service' contains '2' in row 0" in problem(
        tmp_path, "train.csv", "text,food,service,music\na,1,2,0\n", APART
    )
    assert "'music'" in problem(tmp_path, "train.csv", "text,food,service,musik\na,1,0,0\n", APART)
    (tmp_path / "train.csv").unlink()
    for rows in ([True], [3], [None], ["0.5"]):
        line = json.dumps({"text": "a", "tags": rows}) + "\n"
        assert "row 0" in problem(tmp_path, "train.jsonl", line, task())
    assert "`label`" in problem(tmp_path, "train.jsonl", '{"text": "a", "tags": 1}\n', task())


@pytest.mark.parametrize(
    ("rows", "holding"),
    [
        ([[0, 0, 1], [1, 0, 1]], [[2], [0, 2]]),
        ([[0.0, 1.0, 0.0], None], [[1], None]),
        ([[False, True, True]], [[1, 2]]),
        ([["0", "0", "0"]], [[]]),
    ],
)
def test_a_number_for_each_label_is_read_as_such(tmp_path: Path, rows: list[Any], holding: list[Any]) -> None:
    lines = "".join(json.dumps({"text": "a", "tags": row}) + "\n" for row in rows)
    assert gold(tmp_path, "train.jsonl", lines, task()) == holding


def test_of_two_labels_what_could_be_both_is_refused(tmp_path: Path) -> None:
    two = task(labels=["food", "music"])
    for rows, holding in (([[1, 0], [0, 1]], [[0], [1]]), ([[1, 1], [0, 1]], [[0, 1], [1]])):
        lines = "".join(json.dumps({"text": "a", "tags": row}) + "\n" for row in rows)
        assert gold(tmp_path, "train.jsonl", lines, two) == holding
    assert "[0, 1]" in problem(tmp_path, "train.jsonl", '{"text": "a", "tags": [0, 1]}\n' * 2, two)
    assert "row 1" in problem(tmp_path, "train.jsonl", lines.replace("[1, 1]", "[1]").replace("[0, 1]", "[1, 1]"), two)


def test_a_split_without_any_gold(tmp_path: Path) -> None:
    assert gold(tmp_path, "train.jsonl", '{"text": "a", "tags": null}\n' * 2, task()) == [None, None]


def test_numerals_are_names_where_labels_are_called_so(tmp_path: Path) -> None:
    years = task(labels=["1", "0", "2024"])
    assert gold(tmp_path, "train.csv", 'text,tags\na,"0,1"\nb,2024\n', years) == [[0, 1], [2]]


def test_a_hash_of_rows_sees_their_labels(tmp_path: Path) -> None:
    hashes = []
    for tags in ("food", "music", ""):
        (tmp_path / "train.csv").write_text(f"text,tags\na,{tags}\n")
        hashes.append(rows_sha256(load_source(task(), tmp_path).splits["train"]))
    assert len(set(hashes)) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("metrics: [accuracy]", naming("mine.yaml: ", ["accuracy"], "micro_f1, macro_f1")),
        ("labels: [one]", naming("mine.yaml: ", "labels")),
        ("type: classification\nmetrics: [accuracy]\ncolumns: {sentence1: text}", "mine.yaml: .*columns: label"),
    ],
)
def test_a_manifest_that_does_not_fit(change: str, reason: str) -> None:
    keys = {line.partition(":")[0]: line for line in change.splitlines()}
    lines = {
        "name": "name: mine",
        "type": "type: multilabel",
        "columns": "columns: {sentence1: text, label: tags}",
        "labels": "labels: [a, b]",
        "metrics": "metrics: [micro_f1]",
        "splits": "splits: {train: }",
    }
    with pytest.raises(ConfigError, match=reason):
        parse_manifest(Task, "\n".join((lines | keys).values()), "mine.yaml")
