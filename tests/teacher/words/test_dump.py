"""A teacher of words: what is stored is what transformers says, and what does not fit is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.settings import flag_name
from pipeline.tasks.spans import spans, word_scores
from teacher.words.dump import check_word_labels
from tests.helpers.commands import invoke
from tests.helpers.entities import LABELS
from tests.helpers.messages import naming
from tests.helpers.words import TRAIN_ROWS, dump_entities, write_random_teacher


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entities")
    write_random_teacher(folder)
    return folder


@pytest.fixture(scope="module")
def entities(folder: Path) -> TokenLabelSet:
    return dump_entities(folder)


def test_the_set_says_what_transformers_says(folder: Path, entities: TokenLabelSet) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    model = AutoModelForTokenClassification.from_pretrained(folder / "teacher").eval()
    rows, tables = entities.read("train"), entities.read_shard(entities.shards("train")[0])
    for number, words in enumerate(next(tables).column("words").to_pylist()):
        encoding = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            expected_LC = model(**encoding).logits[0, 1:-1].numpy()
        start, stop = rows.pieces.ids.offsets[number : number + 2]
        assert rows.pieces.ids[number].tolist() == encoding["input_ids"][0, 1:-1].tolist()
        assert rows.teacher_TC[start:stop] == pytest.approx(expected_LC, abs=1e-5)
    assert len(rows) == TRAIN_ROWS == entities.record.rows_of("train")
    scores = word_scores(("span_f1", "accuracy"), rows.tallies(rows.teacher_TC))
    assert entities.record.scores["train"] == scores


def test_gold_stands_on_first_tokens(entities: TokenLabelSet) -> None:
    rows = entities.read("validation")
    is_first_T = rows.pieces.is_first_T
    assert (rows.gold_T[~is_first_T] == -1).all()
    assert rows.gold_T[is_first_T].tolist() == rows.gold.flat.tolist()
    assert {span.name for row in rows.gold.lists() for span in spans([LABELS[k] for k in row])} == {"PER", "LOC", "ORG"}


def test_a_lost_file_is_written_again(folder: Path, entities: TokenLabelSet) -> None:
    path = entities.root / entities.record.shards[-1].path
    content = path.read_bytes()
    path.unlink()
    assert dump_entities(folder).record.state == "verified"
    assert path.read_bytes() == content


def test_token_vectors_count_the_training_rows(entities: TokenLabelSet) -> None:
    stored = read_token_vectors(entities.root, entities.record)
    assert stored is not None
    size = entities.record.tokenizer.vocabulary_size
    assert stored.count_V.tolist() == np.bincount(entities.read("train").pieces.ids.flat, minlength=size).tolist()


def test_sql_has_a_row_for_each_word(folder: Path, entities: TokenLabelSet) -> None:
    said = (
        "select text, label_name('entities', label) as gold, label_name('entities', argmax(logits)) as said "
        "from entities_words where split = 'validation' order by source_row, word"
    )
    told = json.loads(invoke("sql", said, "--store", folder / "store", "--json").stdout)
    rows = entities.read("validation")
    assert [row["gold"] for row in told] == [LABELS[k] for k in rows.gold.flat]
    assert [row["said"] for row in told] == [LABELS[k] for k in rows.said(rows.teacher_TC).flat]
    counted = invoke("sql", "select sum(len(words))::int as n from entities", "--store", folder / "store", "--json")
    assert json.loads(counted.stdout)[0]["n"] == entities.read("train").num_words_N.sum() + len(told)


def test_another_order_of_labels_is_found_out(folder: Path, entities: TokenLabelSet) -> None:
    """A teacher that is always right, and one whose outputs for persons and places are exchanged."""
    rows, target = entities.read("train"), entities.record.target
    right_TC = np.eye(len(LABELS), dtype=np.float32)[np.where(rows.gold_T < 0, 0, rows.gold_T)]
    check_word_labels(target, "right", LABELS, replace(rows, teacher_TC=right_TC))
    exchanged = replace(rows, teacher_TC=right_TC[:, [0, 3, 4, 1, 2, 5, 6]])
    with pytest.raises(TeacherError, match=naming("wrong: ", "73.8% of 504", "--teacher-labels")):
        check_word_labels(target, "wrong", LABELS, exchanged)


def test_nan_is_told_with_its_row(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForTokenClassification.from_pretrained(folder / "teacher")
    with torch.no_grad():
        model.classifier.bias[2] = float("nan")
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder / "teacher").save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=naming("validation, row 0, [", "NaN")):
        dump_entities(folder, model_name_or_path=str(tmp_path), store=tmp_path / "store")


def test_a_teacher_of_texts_is_refused(folder: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(folder / "bert", num_labels=7).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder / "teacher").save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=naming("BertForSequenceClassification", "'entities'")):
        dump_entities(folder, model_name_or_path=str(tmp_path), store=tmp_path / "store")


@pytest.mark.parametrize(
    "flags",
    [{"augment": "mask-pos"}, {"states": "1"}, {"unlabelled": "x"}, {"plan": True}, {"extend": "x"}, {"doc_stride": 8}],
)
def test_what_is_not_for_words_is_refused_before_the_work(folder: Path, flags: dict[str, object]) -> None:
    (flag,) = flags
    with pytest.raises(ConfigError, match=naming(f"{flag_name(flag)}: ")):
        dump_entities(folder, model_name_or_path="nowhere", **flags)


def test_fine_tuning_learns_the_words(folder: Path, tmp_path: Path) -> None:
    empty = '{"tokens": [], "tags": []}\n'  # more of these than a batch has
    (tmp_path / "train.jsonl").write_text((folder / "train.jsonl").read_text() + 33 * empty)
    (tmp_path / "validation.jsonl").write_text((folder / "validation.jsonl").read_text())
    places = ("--manifest", folder / "entities.yaml", "--data", tmp_path, "--output-dir", tmp_path / "teacher")
    quick = ("--num-train-epochs", 4, "--learning-rate", 0.01, "--max-seq-length", 32)
    batches = ("--per-device-train-batch-size", 16, "--json")
    made = invoke("finetune-teacher", *places, "--model-name-or-path", folder / "bert", *quick, *batches)
    assert made.exit_code == 0, made.output
    history = json.loads(made.stdout)["result"]["history"]
    assert history[-1]["loss"] < history[0]["loss"] * 0.7
    dumped = dump_entities(folder, model_name_or_path=str(tmp_path / "teacher"), store=tmp_path / "store")
    scores = dumped.record.scores["validation"]
    best = max(history, key=lambda entry: entry["metrics"]["validation"]["span_f1"])
    assert scores == pytest.approx(best["metrics"]["validation"], abs=1e-6)
