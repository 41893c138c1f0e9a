"""Files and folders as Hugging Face `datasets` writes them: its names of classes count, and its records are no rows."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from distill.apps.quickstart.inspect_rows import look_at
from pipeline.errors import DataError
from pipeline.sources import load_documents, load_source
from pipeline.sources.columns import class_names
from pipeline.sources.row_files import open_rows
from pipeline.sources.source import load_word_source
from pipeline.tasks.task import Corpus, Task
from teacher.unlabelled import find_texts
from tests.helpers.messages import naming
from tests.helpers.own_tasks import task_of

TEXTS = ["dull", "fine", "poor"]


def dataset(feature: Any, values: list[Any], texts: list[Any] | None = None) -> datasets.Dataset:
    of_text = datasets.Value("string") if texts is None else datasets.List(datasets.Value("string"))
    rows = {"text": texts or [TEXTS[k % 3] for k in range(len(values))], "label": values}
    return datasets.Dataset.from_dict(rows, datasets.Features({"text": of_text, "label": feature}))


def write_parquet(rows: datasets.Dataset, path: Path) -> None:
    rows.to_parquet(path)


def write_feather(rows: datasets.Dataset, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.data.table.schema) as writer:
        writer.write_table(rows.data.table)


WRITERS = {".parquet": write_parquet, ".arrow": write_feather, ".feather": write_feather}
SWAPPED = datasets.ClassLabel(names=["good", "bad"])


def gold(folder: Path, task: Task, kind: str = ".parquet") -> list[Any]:
    load = load_word_source if task.type == "token_labels" else load_source
    found: list[Any] = load(task, folder).splits["train"].column("label").to_pylist()
    return found


@pytest.mark.parametrize("kind", WRITERS)
def test_numbers_of_classes_are_read_by_the_names_of_their_file(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](dataset(SWAPPED, [0, 1, -1, 0]), tmp_path / f"train{kind}")
    assert gold(tmp_path, task_of()) == [1, 0, None, 1]


def test_each_part_of_a_split_has_its_own_names(tmp_path: Path) -> None:
    names = [["good", "bad"], ["bad", "good"]]
    for k, of_part in enumerate(names):
        part = dataset(datasets.ClassLabel(names=of_part), [0, 1])
        part.to_parquet(tmp_path / f"train-{k:05}-of-00002.parquet")
    assert gold(tmp_path, task_of()) == [1, 0, 0, 1]


@pytest.mark.parametrize("of_lists", [datasets.List, datasets.LargeList])
def test_lists_of_classes(of_lists: Any, tmp_path: Path) -> None:
    dataset(of_lists(SWAPPED), [[0], [1, 0], []]).to_parquet(tmp_path / "train.parquet")
    several = task_of(type="multilabel", metrics=["micro_f1"])
    assert gold(tmp_path, several) == [[1], [0, 1], []]
    tags = datasets.ClassLabel(names=["B-X", "O", "I-X"])
    words = dataset(datasets.List(tags), [[0, 2], [1]], [["a", "b"], ["c"]])
    words.to_parquet(tmp_path / "train.parquet")
    of_words = task_of(type="token_labels", labels=["O", "B-X", "I-X"], metrics=["accuracy"])
    assert gold(tmp_path, of_words) == [[1, 2], [0]]


def test_a_column_for_each_label_and_scores(tmp_path: Path) -> None:
    no = datasets.ClassLabel(names=["yes", "no"])
    features = datasets.Features({"text": datasets.Value("string"), "bad": no, "good": no})
    rows = {"text": TEXTS, "bad": [0, 1, 0], "good": [1, 0, 0]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "train.parquet")
    several = task_of(type="multilabel", metrics=["micro_f1"], columns={"sentence1": "text"})
    assert gold(tmp_path, several) == [[0], [1], [0, 1]]
    dataset(datasets.ClassLabel(names=["1", "2", "3"]), [2, 0]).to_parquet(tmp_path / "train.parquet")
    scores = task_of(type="regression", labels=[], metrics=["pearson"], score_range=[0, 5])
    assert load_source(scores, tmp_path).splits["train"].column("score").to_pylist() == [3, 1]


@pytest.mark.parametrize(
    ("names", "values", "what"),
    [
        (["NEGATIVE", "POSITIVE"], [0, 1], ["NEGATIVE", "0=bad, 1=good"]),
        (["2", "1"], [0, 1], ["names its classes 2, 1", "bad, good"]),
        (["1", "0"], [1, 1], ["names its classes 1, 0", "bad, good"]),
    ],
)
def test_names_that_are_not_the_tasks_are_refused(
    names: list[str], values: list[int], what: list[str], tmp_path: Path
) -> None:
    dataset(datasets.ClassLabel(names=names), values).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=naming("train.parquet", *what)):
        load_source(task_of(), tmp_path)


def test_a_number_without_a_name_is_refused(tmp_path: Path) -> None:
    rows = dataset(SWAPPED, [0, 1])
    table = rows.data.table.set_column(1, "label", pa.array([0, 2])).replace_schema_metadata(
        rows.features.arrow_schema.metadata
    )
    with pa.OSFile(str(tmp_path / "train.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=naming("train.arrow", "'label' contains 2", "0 to 1")):
        load_source(task_of(), tmp_path)


def test_names_that_repeat_the_numbers_leave_them_to_the_manifest(tmp_path: Path) -> None:
    dataset(datasets.ClassLabel(names=["0", "1"]), [0, 1]).to_parquet(tmp_path / "train.parquet")
    assert gold(tmp_path, task_of()) == [0, 1]


def test_quickstart_calls_classes_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    dataset(SWAPPED, [0, 1] * 30).to_parquet(file)
    look = look_at(file, ["text"], "label")
    assert look.labels == ("bad", "good")
    assert [row["label"] for row in look.rows[:2]] == ["good", "bad"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"info": 1}', b'{"info": {"features": {"label": 3}}}', b"\xff"])
def test_metadata_of_another_shape_names_nothing(text: bytes) -> None:
    assert class_names({b"huggingface": text}) == {}
    assert class_names(None) == {}


def saved(folder: Path, rows: int = 7, shards: int = 3) -> Path:
    """One split of so many rows, in several files."""
    labels, features = (
        [k % 2 for k in range(rows)],
        datasets.Features({"text": datasets.Value("string"), "label": SWAPPED}),
    )
    named = datasets.Dataset.from_dict({"text": [f"text {k}" for k in range(rows)], "label": labels}, features)
    named.save_to_disk(folder, num_shards=shards)
    return folder


def edit_state(folder: Path, **changes: Any) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | changes))


def texts(folder: Path, split: str = "train") -> list[str]:
    found: list[str] = load_source(task_of(), folder).splits[split].column("sentence1").to_pylist()
    return found


def test_a_saved_data_set_with_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "train")
    saved(tmp_path / "validation", 2, 1)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert texts(tmp_path) == [f"text {k}" for k in range(7)]
    assert texts(tmp_path, "validation") == ["text 0", "text 1"]
    assert gold(tmp_path, task_of()) == [1, 0, 1, 0, 1, 0, 1]
    assert ".json" not in capsys.readouterr().err


def test_a_saved_split_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    saved(tmp_path)
    files = json.loads((tmp_path / "state.json").read_text())["_data_files"]
    edit_state(tmp_path, _data_files=files[::-1])
    assert texts(tmp_path) == [f"text {k}" for k in (5, 6, 3, 4, 0, 1, 2)]
    edit_state(tmp_path, _data_files=files, _split="validation")
    assert texts(tmp_path, "validation") == [f"text {k}" for k in range(7)]


def test_a_saved_split_is_text_of_a_corpus_and_without_labels(tmp_path: Path) -> None:
    expected = [f"text {k}" for k in range(7)]
    documents = load_documents(Corpus(name="mine", columns=("text",)), saved(tmp_path))
    assert [text for _, found in documents.read(0, 7) for text in found] == expected
    found = find_texts(str(tmp_path), task_of(), None, 0, None)
    assert found.columns[0].to_pylist() == expected
    with pytest.raises(DataError, match=naming(f"{tmp_path}: is a folder", "data-00000-of-00003.arrow")):
        open_rows(tmp_path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"_data_files": [{"filename": "gone.arrow"}]}, ["gone.arrow", "state.json"]),
        ({"_data_files": [{"filename": "../data.arrow"}]}, ["state.json"]),
        ({"_data_files": 3}, ["state.json"]),
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, ["flatten_indices"]),
    ],
)
def test_a_saved_split_that_cannot_be_read(changes: dict[str, Any], what: list[str], tmp_path: Path) -> None:
    edit_state(saved(tmp_path), **changes)
    with pytest.raises(DataError, match=naming(str(tmp_path), *what)):
        load_source(task_of(), tmp_path)
