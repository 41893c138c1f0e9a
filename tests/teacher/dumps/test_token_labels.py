"""A teacher of words: stored logits equal those of transformers, and what does not fit is refused."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.record import read_set_record
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.settings import flag_name
from pipeline.tasks.spans import spans, word_scores
from pipeline.text.tokenizer import Tokenized
from teacher.dump.known_logits import FOLDER, read_shared_answers, write_shared_answers
from teacher.dump.shard_jobs import Advance
from teacher.dumps.token_labels import TokenLabelsJob, check_word_labels
from tests.helpers.commands import invoke
from tests.helpers.entities import LABELS
from tests.helpers.messages import naming
from tests.helpers.words import TRAIN_ROWS, VALIDATION_ROWS, dump_entities, write_random_teacher


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
    assert [row["said"] for row in told] == [LABELS[k] for k in rows.predicted(rows.teacher_TC).flat]
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
        model.classifier.weight[2] = 3e38  # finite, as a checkpoint must be; the logits are not
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
    [{"augment": "mask-pos"}, {"states": "1"}, {"unlabelled": "x"}, {"doc_stride": 8}],
)
def test_what_is_not_for_words_is_refused_before_the_work(folder: Path, flags: dict[str, object]) -> None:
    (flag,) = flags
    with pytest.raises(ConfigError, match=naming(f"{flag_name(flag)}: ")):
        dump_entities(folder, model_name_or_path="nowhere", **flags)


def places(folder: Path, store: Path, rows_per_shard: int = 25) -> tuple[object, ...]:
    """The flags of a dump of the rows in a folder into a store."""
    where = ("--manifest", folder / "entities.yaml", "--data", folder, "--store", store)
    small = ("--max-seq-length", 32, "--rows-per-shard", rows_per_shard)
    return (*where, "--model-name-or-path", folder / "teacher", *small)


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "token_labels").iterdir())}


def test_the_plan_counts_rows_and_writes_nothing(folder: Path, entities: TokenLabelSet, tmp_path: Path) -> None:
    made = invoke("teacher-dump", *places(folder, tmp_path / "store"), "--plan", "--json")
    assert made.exit_code == 0, made.output
    plan = json.loads(made.stdout)
    assert plan["rows"] == {"train": TRAIN_ROWS, "validation": VALIDATION_ROWS}
    assert plan["shards"] == len(entities.record.shards)
    num_tokens = sum(len(entities.read(split).teacher_TC) for split in entities.splits)
    assert 0.5 < plan["tokens"] / (num_tokens + 3 * entities.record.tokenizer.vocabulary_size) < 2
    assert plan["disk_bytes"] > 4 * len(LABELS) * num_tokens / 2
    assert plan["seconds"] > 0
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_workers_on_a_cluster_write_the_bytes_of_one_process(
    ray_cluster: Any, folder: Path, entities: TokenLabelSet, tmp_path: Path
) -> None:
    made = invoke("teacher-dump", *places(folder, tmp_path), "--ray", "local", "--ray-workers", 1, "--json")
    assert made.exit_code == 0, made.output
    assert " workers: " in made.stderr
    assert files(tmp_path / "entities") == files(entities.root)
    assert json.loads(made.stdout)["scores"] == entities.record.scores


def copied(folder: Path, tmp_path: Path) -> Path:
    """The rows, the manifest and the teacher in a separate folder."""
    shutil.copytree(folder, tmp_path / "own", ignore=shutil.ignore_patterns("store"))
    return tmp_path / "own"


def append(folder: Path, *numbers: int, **changes: object) -> None:
    """Repeats training rows at the end."""
    path = folder / "train.jsonl"
    lines = path.read_text().splitlines()
    lines += [json.dumps(json.loads(lines[number]) | changes) for number in numbers]
    path.write_text("".join(line + "\n" for line in lines))


def test_the_second_job_takes_the_answers_of_the_first(folder: Path, tmp_path: Path) -> None:
    own, store = copied(folder, tmp_path), tmp_path / "store"
    append(own, 0)  # in another shard than the first row
    first = invoke("teacher-dump", *places(own, store, 40), "--shard-index", 0, "--num-shards", 2, "--json")
    assert json.loads(first.stdout)["state"] == "staged"
    staged = read_set_record(store / "entities")
    known = read_shared_answers(store, staged)
    assert known is not None
    write_shared_answers(store, staged, replace(known, logits_TC=known.logits_TC + 1000))  # what no teacher predicts
    second = invoke("teacher-dump", *places(own, store, 40), "--shard-index", 1, "--num-shards", 2, "--json")
    assert json.loads(second.stdout)["state"] == "verified", second.output
    stored = TokenLabelSet.open(store / "entities")
    rows, shards = stored.read("train"), stored.record.shards_of("train")
    offsets = rows.pieces.ids.offsets
    is_marked = [rows.teacher_TC[start:stop].max() > 900 for start, stop in (offsets[:2], offsets[-2:])]
    assert is_marked == [stored.record.shards.index(shard) % 2 == 1 for shard in (shards[0], shards[-1])]
    assert is_marked[0] != is_marked[1]
    assert not list((store / FOLDER).iterdir())


def test_a_new_version_asks_only_what_is_new(
    folder: Path, entities: TokenLabelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, read = copied(folder, tmp_path), list[list[int]]()
    append(own, 0, 1)  # known already
    append(own, 0, 0, tokens=["paris", "met", "milan"], tags=["B-PER", "O", "B-PER"])
    predict = TokenLabelsJob.predict

    def noted(job: TokenLabelsJob, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        read.extend(row.ids1 for row in inputs)
        return predict(job, inputs, advance)

    monkeypatch.setattr(TokenLabelsJob, "predict", noted)
    extend = ("--extend", entities.root, "--name", "second")
    made = invoke("teacher-dump", *places(own, tmp_path / "store"), *extend, "--json")
    assert made.exit_code == 0, made.output
    assert len(read) == 1
    second = TokenLabelSet.open(tmp_path / "store" / "second")
    shared = [shard.path for shard in second.record.shards if shard.version]
    assert shared == [shard.path for shard in entities.record.shards]
    assert all((second.root / path).samefile(entities.root / path) for path in shared)
    assert read_token_vectors(second.root, second.record) is not None
    plain = dump_entities(own, store=tmp_path / "plain")
    assert second.record.fingerprint == plain.record.fingerprint
    for split in ("train", "validation"):
        ours, theirs = second.read(split), plain.read(split)
        assert ours.pieces.ids.flat.tolist() == theirs.pieces.ids.flat.tolist()
        np.testing.assert_allclose(ours.teacher_TC, theirs.teacher_TC, rtol=0, atol=1e-5)


def test_a_set_of_texts_cannot_be_extended(folder: Path, store: Path, tmp_path: Path) -> None:
    extend = ("--extend", store / "opinion", "--name", "second")
    made = invoke("teacher-dump", *places(folder, tmp_path / "store"), *extend)
    assert made.exit_code == 2
    assert "type: token_labels" in " ".join(made.stderr.split())


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
