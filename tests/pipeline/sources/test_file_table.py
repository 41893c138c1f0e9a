"""Every cell of the table in docs/files.md: what a command reads is read rightly, and what it does not is named."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DistillError
from pipeline.sources import load_documents, load_source
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.sources.source import load_word_source
from pipeline.tasks.task import Corpus, Task
from student.predict.file import text_names
from teacher.imported.answer_rows import ENDINGS, read_answers
from teacher.imported.import_settings import AnswersFile
from teacher.unlabelled import find_texts
from tests.helpers.row_formats import PACKERS, WRITERS, fasttext

PAGE = (Path(__file__).parents[3] / "docs" / "files.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
COLUMNS = next(line for line in PAGE.splitlines() if line.startswith("| file")).strip("| ").split(" | ")[1:]
CELLS = [
    (kind, "fastText" in name, column, cell)
    for name, *cells in ROWS
    for kind in re.findall(r"`(\.\w+)`", name)
    for column, cell in zip(COLUMNS, cells, strict=True)
]
TEXTS, NAMES, NUMBERS = ["a b", "größer z", "c"], ["bad", "good", "bad"], [0, 1, 0]
LOGITS = [[1.5, -2.0], [0.0, 0.25], [-1.0, 3.0]]
TASK = {
    "name": "mine",
    "type": "classification",
    "columns": {"sentence1": "text", "label": "label"},
    "labels": ["bad", "good"],
    "metrics": ["accuracy"],
    "splits": {"train": None},
}
CLASSES = Task.model_validate(TASK)
WORDS = Task.model_validate(TASK | {"type": "token_labels", "metrics": ["span_f1"], "labels": ["O", "B-X"]})


def written(path: Path, with_labels: bool, label: list[str], **others: list[str]) -> Path:
    """A file with texts and gold."""
    table = pa.table({"text": TEXTS, "label": label, **others})
    if path.suffix in ENDINGS:
        np.savez(path, text=np.array(TEXTS), logits=np.array(LOGITS))
    else:
        path.write_bytes((fasttext if with_labels else WRITERS[path.suffix])(table))
    return path


def tasks(folder: Path, kind: str, with_labels: bool) -> bool:
    rows = load_source(CLASSES, written(folder / f"train{kind}", with_labels, NAMES)).splits["train"]
    return bool(rows["sentence1"].to_pylist() == TEXTS and rows["label"].to_pylist() == NUMBERS)


def words(folder: Path, kind: str, with_labels: bool) -> bool:
    rows = load_word_source(WORDS, written(folder / f"train{kind}", with_labels, ["O B-X", "O O", "B-X"])).splits[
        "train"
    ]
    assert rows["sentence1"].to_pylist() == [text.split() for text in TEXTS]
    return bool(rows["label"].to_pylist() == [[0, 1], [0, 0], [1]])


def corpora(folder: Path, kind: str, with_labels: bool) -> bool:
    documents = load_documents(Corpus(name="mine"), written(folder / f"x{kind}", with_labels, NAMES))
    return [text for _, batch in documents.read(0, documents.num_documents) for text in batch] == TEXTS


def unlabelled(folder: Path, kind: str, with_labels: bool) -> bool:
    found = find_texts(str(written(folder / f"x{kind}", with_labels, NAMES)), CLASSES, None, 0, None)
    return bool(found.columns[0].to_pylist() == TEXTS)


def imported(folder: Path, kind: str, with_labels: bool) -> bool:
    logits = [json.dumps(row) for row in LOGITS]
    (folder / "mine.yaml").write_text(json.dumps(TASK))
    path = written(folder / f"x{kind}", with_labels, NAMES, logits=logits)
    found = read_answers(AnswersFile(file=path, manifest=folder / "mine.yaml", teacher="any"), CLASSES)
    if kind == ".txt":  # its labels are the answers
        return [CLASSES.labels[k] for k in found.logits_WC.argmax(axis=1)] == NAMES
    return np.allclose(found.logits_WC, LOGITS)


def predict(folder: Path, kind: str, with_labels: bool) -> bool:
    rows = open_rows(written(folder / f"x{kind}", with_labels, NAMES))
    names = text_names(rows.names, str(rows.path), [("text", "sentence1")])
    return bool(rows.table(names).column(0).to_pylist() == TEXTS)


def packed(folder: Path, kind: str, with_labels: bool) -> bool:
    plain = written(folder / f"plain{kind}", with_labels, NAMES)
    for packing, pack in PACKERS.items():
        path = folder / f"x{kind}{packing}"
        path.write_bytes(pack(plain.read_bytes()))
        if packing and open_rows(path, line_column="text").table(["text"]).column(0).to_pylist() != TEXTS:
            return False
    return True


COMMANDS: dict[str, Callable[[Path, str, bool], bool]] = {
    "tasks": tasks,
    "words": words,
    "corpora": corpora,
    "unlabelled": unlabelled,
    "import": imported,
    "predict": predict,
    "packed": packed,
}


@pytest.mark.parametrize(("kind", "with_labels", "column", "cell"), CELLS)
def test_a_cell(kind: str, with_labels: bool, column: str, cell: str, tmp_path: Path) -> None:
    if cell == "yes":
        assert COMMANDS[column](tmp_path, kind, with_labels)
    else:
        with pytest.raises(DistillError, match=re.escape(kind)):
            COMMANDS[column](tmp_path, kind, with_labels)


def test_the_table_has_all_formats_and_commands() -> None:
    assert {kind for kind, *_ in CELLS} == {*FORMATS, ".npz"}
    assert [*COMMANDS] == COLUMNS


def test_rows_of_arrow_stay_if_the_file_is_overwritten_in_place(tmp_path: Path) -> None:
    path, table = tmp_path / "rows.arrow", pa.table({"text": [f"text {k}" * 99 for k in range(9999)]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    opened = open_rows(path).table()
    path.write_bytes(b"x")  # as `cp` does
    assert opened.equals(table)
