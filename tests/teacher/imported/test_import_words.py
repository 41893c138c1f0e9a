"""Predictions of labelled words in a file, as a set like any other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.apps.score_advice import judge_words
from pipeline.errors import DataError
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.set_settings import VerifySettings
from pipeline.sets.verify import verify
from pipeline.tasks.target import softmax
from teacher.imported.import_answers import import_answers
from teacher.imported.import_settings import AnswersFile
from tests.helpers.commands import invoke
from tests.helpers.entities import LABELS, write_entities
from tests.helpers.messages import naming

Rows = list[dict[str, Any]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """All sentences, with a probability of 0.9 for the gold label of each word."""
    write_entities(tmp_path, 40, 20)
    files = [(tmp_path / f"{split}.jsonl").read_text().splitlines() for split in ("train", "validation")]
    rows = [json.loads(line) for lines in files for line in lines]
    return [row | {"probabilities": [sure_of(label) for label in row["tags"]]} for row in rows]


def sure_of(label: str) -> dict[str, float]:
    return {name: 0.9 if name == label else 0.1 / 6 for name in LABELS}


def config(folder: Path, rows: Rows, **changes: Any) -> AnswersFile:
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {"file": folder / "answers.jsonl", "manifest": folder / "entities.yaml", "data": folder, "teacher": "llm"}
    return AnswersFile.from_flags(**flags | {"store": folder / "store", "rows_per_shard": 25} | changes)


@pytest.mark.parametrize("as_text", [False, True])
def test_every_word_has_its_answer(rows: Rows, tmp_path: Path, as_text: bool) -> None:
    given = [row | {"probabilities": json.dumps(row["probabilities"])} if as_text else row for row in rows]
    imported = import_answers(config(tmp_path, given[::-1]), "distill import")
    assert imported.record.scores["validation"] == {"span_f1": 1.0, "accuracy": 1.0}
    assert verify(VerifySettings(set_or_run=str(imported.root))).state == "verified"
    words = TokenLabelSet.open(imported.root)
    for split in ("train", "validation"):
        sentences = words.read(split)
        # All tokens of a word have its probabilities.
        assert softmax(sentences.teacher_TC).max(axis=1) == pytest.approx(np.full(len(sentences.teacher_TC), 0.9))
        assert (sentences.gold_T >= 0).sum() == sentences.pieces.is_first_T.sum()


def test_an_answer_may_be_a_label(rows: Rows, tmp_path: Path) -> None:
    given = [{"tokens": row["tokens"], "labels": row["tags"]} for row in rows]
    imported = import_answers(config(tmp_path, given), "distill import")
    assert imported.record.scores["validation"] == {"span_f1": 1.0, "accuracy": 1.0}
    teacher_TC = TokenLabelSet.open(imported.root).read("train").teacher_TC
    assert softmax(teacher_TC).max(axis=1) == pytest.approx(np.ones(len(teacher_TC)), abs=1e-4)


def test_a_split_without_answers_is_left_out(rows: Rows, tmp_path: Path) -> None:
    record = import_answers(config(tmp_path, rows[:40]), "distill import").record
    assert [*record.splits] == ["train"]


@pytest.mark.parametrize(
    ("row", "change", "named"),
    [
        (3, {"probabilities": None}, "'train'"),
        (3, {"probabilities": [sure_of("O")]}, "row 3"),
        (3, {"probabilities": [None, *[sure_of("O")] * 7]}, "row 3"),
        (3, {"probabilities": [{"O": 1.0}]}, "row 3"),
        (0, {"tokens": ["other", "words"]}, "'train'"),
    ],
)
def test_what_is_no_answer_to_each_word_is_refused(
    rows: Rows, tmp_path: Path, row: int, change: dict[str, Any], named: str
) -> None:
    rows[row] |= change
    with pytest.raises(DataError, match=naming(named)):
        import_answers(config(tmp_path, rows), "distill import")


def test_a_teacher_of_one_label_is_reported(rows: Rows, tmp_path: Path) -> None:
    given = [{"tokens": row["tokens"], "label": ["O"] * len(row["tokens"])} for row in rows]
    root = import_answers(config(tmp_path, given), "distill import").root
    found = judge_words(TokenLabelSet.open(root))
    assert any("same answer" in line for line in found)


def test_the_command_counts_dev_sentences_that_are_training_sentences(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3] + rows[40:]))
    settings = config(tmp_path, rows)
    flags = ("--manifest", settings.manifest, "--data", tmp_path, "--teacher", "llm", "--store", settings.store)
    done = invoke("import", settings.file, *flags)
    assert done.exit_code == 0, done.stderr
    assert any("validation: 3 of 23 rows" in line for line in done.stderr.splitlines())
