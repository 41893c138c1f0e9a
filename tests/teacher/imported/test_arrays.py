"""Answers in NumPy's files are those of a file of rows, and what has no names is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError, DistillError
from pipeline.tasks.task import load_task
from teacher.imported.answer_rows import Answers, read_answers
from teacher.imported.import_settings import ImportSettings
from tests.helpers.messages import naming

LOGITS = np.array([[2.0, -1.0], [0.5, 0.25], [-3.0, 1.5]], np.float16)
KEYS: dict[str, Any] = {"split": "train", "source_row": np.array([2, 0, 1])}


def answers(path: Path, **flags: Any) -> Answers:
    return read_answers(ImportSettings.from_flags(file=path, task="rte", teacher="any", **flags), load_task("rte"))


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "answers.npz", **arrays)
    return folder / "answers.npz"


def test_named_arrays_are_columns(tmp_path: Path) -> None:
    found = answers(saved(tmp_path, logits=LOGITS, **KEYS))
    assert found.table.select(["split", "source_row"]).to_pydict() == {"split": ["train"] * 3, "source_row": [2, 0, 1]}
    assert (found.kind, found.labels) == ("logits", ("entailment", "not_entailment"))
    assert np.array_equal(found.logits_AC, LOGITS.astype(np.float32))


def test_fields_of_one_array_are_columns(tmp_path: Path) -> None:
    rows = np.array([("a", "b", [0.25, 0.75])], [("sentence1", "U9"), ("sentence2", "S9"), ("probabilities", "f8", 2)])
    np.save(tmp_path / "ANSWERS.NPY", rows)
    (tmp_path / "ANSWERS.NPY.npy").rename(tmp_path / "ANSWERS.NPY")
    found = answers(tmp_path / "ANSWERS.NPY")
    assert found.table.column("sentence2").to_pylist() == ["b"]
    assert np.allclose(np.exp(found.logits_AC), [[0.25, 0.75]])


def test_the_names_of_outputs_give_their_order(tmp_path: Path) -> None:
    path = saved(tmp_path, logits=LOGITS, labels=np.array(["Not_Entailment", "entailment"]), **KEYS)
    assert np.array_equal(answers(path).logits_AC, LOGITS[:, ::-1].astype(np.float32))
    stated = answers(path, teacher_labels="entailment,not_entailment")  # goes before
    assert np.array_equal(stated.logits_AC, LOGITS.astype(np.float32))
    with pytest.raises(ConfigError, match=naming("answers.npz", "LABEL_0", "--teacher-labels")):
        answers(saved(tmp_path, logits=LOGITS, labels=np.array(["LABEL_0", "LABEL_1"]), **KEYS))


@pytest.mark.parametrize(
    ("arrays", "words", "kind"),
    [
        ({"logits": LOGITS, "split": "train", "source_row": [1, 2]}, ("logits (3, 2)", "source_row (2,)"), DataError),
        ({"logits": np.array([{"a": 1}, None])}, ("pickle",), DataError),
        ({"logits": LOGITS[None], "split": ["train"]}, ("'logits'", "3 dimensions"), DataError),
        ({"logits": LOGITS, "sentence1": np.array([b"a", b"b", b"\xff"])}, ("'sentence1'", "UTF-8"), DataError),
        ({"logits": LOGITS * np.nan, **KEYS}, ("rows 0, 1, 2", "nan"), DataError),
        ({"logits": LOGITS[:, :1], **KEYS}, ("rows 0, 1, 2", "1 numbers"), DataError),
        ({"outputs": LOGITS, **KEYS}, ("logits", "outputs"), ConfigError),
        ({}, ("none",), DataError),
    ],
)
def test_arrays_that_are_no_answers(
    arrays: dict[str, Any], words: tuple[str, ...], kind: type[DistillError], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=naming("answers.npz", *words)):
        answers(saved(tmp_path, **arrays))


def test_files_that_are_no_named_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "bare.npy", LOGITS)
    with pytest.raises(DataError, match=naming("bare.npy", "without names", "np.savez")):
        answers(tmp_path / "bare.npy")
    whole = saved(tmp_path, logits=LOGITS).read_bytes()
    contents = {
        "cut": whole[:-40],
        "other": b"text",
        "empty": b"",
        "lfs": b"version https://git-lfs.github.com/spec/v1\n",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=naming(f"{name}.npz")):
            answers(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=naming("gone.npz", "no such file")):
        answers(tmp_path / "gone.npz")
