import filecmp
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification

from pipeline.arrays import Floats, Ints
from pipeline.environment import MIXED_PRECISION
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.record_file import Record, read_work_record
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.target import Target, gold_arrays, predicted_scores
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import tokenize
from pipeline.training.run import CHECKPOINT
from teacher.finetune import common
from teacher.finetune.classifier import finetune
from teacher.finetune.tasks import classifier_loss, hold_out
from teacher.finetune_settings import FinetuneSettings
from teacher.models.classifier import load_teacher, teacher_logits
from teacher.models.loaded import inference_mode
from teacher.tiny import create_tiny_bert
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.messages import naming
from tests.helpers.multilabel import write_topics
from tests.helpers.word_tasks import WORDS, MakeTask, make_louder

Run = Callable[..., Record]
STEPS = 24  # of an epoch of the opinion task in batches of 4


@pytest.fixture
def run(work: Path, tmp_path: Path) -> Run:
    """Fine-tunes the tiny BERT on the opinion task for a few steps, into ``out``."""

    def run_it(**changes: Any) -> Record:
        settings: dict[str, Any] = {
            "manifest": work / "opinion.yaml",
            "data": work / "data",
            "model_name_or_path": str(work / "bert"),
            "output_dir": tmp_path / "out",
            "num_train_epochs": 2,
            "learning_rate": 1e-3,
            "per_device_train_batch_size": 16,
            "max_seq_length": 32,
        }
        return finetune(FinetuneSettings.from_flags(**settings | changes), "distill finetune-teacher")

    return run_it


@pytest.fixture
def learn_words(run: Run, work: Path, tmp_path: Path) -> Run:
    """Fine-tunes on the words task."""

    def run_it(**changes: Any) -> Record:
        settings = {"manifest": tmp_path / "words.yaml", "data": tmp_path / "data", "per_device_train_batch_size": 4}
        encoder = {} if "model_name_or_path" in changes else {"model_name_or_path": tiny_bert(tmp_path)}
        return run(**settings | encoder | changes)

    return run_it


def test_learns_which_word_has_which_label(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    task = word_task(("ash", "birch"))
    learn = learn_words(model_name_or_path=tiny_bert(tmp_path), num_train_epochs=4)
    assert learn["result"]["best"]["metrics"] == {"validation": {"accuracy": 1.0}}
    assert accuracy(task, tmp_path) == 1.0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "ash", "1": "birch"}
    assert not list((tmp_path / "out").glob("checkpoint*"))


def test_the_best_epoch_is_kept(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    task = word_task(("ash", "birch"))
    write_rows(tmp_path / "data" / "validation.jsonl", [{"text": WORDS[k % 2], "label": 1 - k % 2} for k in range(60)])
    settings = {"model_name_or_path": tiny_bert(tmp_path), "learning_rate": 3e-3}
    record = learn_words(**settings, num_train_epochs=4, warmup_steps=15 * 10)
    values = [entry["metrics"]["validation"]["accuracy"] for entry in record["result"]["history"]]
    assert values[-1] == 0 < max(values)  # what it learns is wrong on the dev split, so that the last epoch is worse
    assert record["result"]["best"]["metrics"]["validation"]["accuracy"] == max(values)
    assert accuracy(task, tmp_path) == pytest.approx(max(values))


def test_held_out_rows_choose_the_epoch_dev_does_not(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    word_task(("ash", "birch"))
    write_rows(tmp_path / "data" / "validation.jsonl", [{"text": WORDS[k % 2], "label": 1 - k % 2} for k in range(60)])
    settings = {"model_name_or_path": tiny_bert(tmp_path), "learning_rate": 3e-3, "num_train_epochs": 4}
    best = learn_words(**settings, held_out=0.25)["result"]["best"]
    assert list(best["metrics"]) == ["held-out", "validation"]
    assert best["metrics"]["held-out"] == {"accuracy": 1.0}
    assert best["metrics"]["validation"] == {"accuracy": 0.0}  # which by itself would have kept another epoch


def test_held_out_rows_are_no_training_rows() -> None:
    train = pa.table({"source_row": range(40), "sentence1": [f"text {k}" for k in range(40)]})
    source = Source("rows", {"validation": pa.table({"source_row": [7]}), "train": train}, [])
    parts = {name: rows["source_row"].to_pylist() for name, rows in hold_out(source, 0.1).items()}
    assert list(parts) == ["train", "held-out", "validation"]
    assert (len(parts["held-out"]), parts["validation"]) == (4, [7])
    assert sorted(parts["train"] + parts["held-out"]) == list(range(40))
    assert parts["held-out"] == hold_out(source, 0.1)["held-out"]["source_row"].to_pylist()
    with pytest.raises(DataError, match=naming("--held-out 0.01: ", "0 of 40")):
        hold_out(source, 0.01)


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        ({"test": [1]}, ["train", "held-out", "test"]),
        ({"test": [1], "validation": [1]}, ["train", "test", "validation"]),
        ({"test": [1], "validation": [None]}, ["train", "held-out", "test", "validation"]),
        ({"test": [None]}, ["train", "test"]),
    ],
)
def test_a_tenth_of_the_training_rows_is_held_out_where_only_a_test_has_gold(
    dev: dict[str, list[int | None]], expected: list[str]
) -> None:
    score = {"score": pa.array([None], pa.float32())}
    texts = [f"text {k}" for k in range(40)]
    splits = {"train": pa.table({"sentence1": texts, "label": range(40), "score": pa.nulls(40, pa.float32())})}
    splits |= {name: pa.table({"label": pa.array(gold, pa.int64()), **score}) for name, gold in dev.items()}
    assert list(hold_out(Source("rows", splits, []), None)) == expected


@pytest.mark.slow
def test_killed_and_repeated_is_as_undisturbed(run: Run, work: Path, tmp_path: Path) -> None:
    undisturbed = run(output_dir=tmp_path / "undisturbed", per_device_train_batch_size=4, num_train_epochs=3)
    flags: dict[str, object] = {
        "manifest": work / "opinion.yaml",
        "data": work / "data",
        "model-name-or-path": work / "bert",
    }
    flags |= {"output-dir": tmp_path / "out", "num-train-epochs": 3, "learning-rate": 1e-3, "max-seq-length": 32}
    flags |= {"per-device-train-batch-size": 4, "save-steps": 1}
    process = distill("finetune-teacher", *(part for flag, value in flags.items() for part in (f"--{flag}", value)))
    kill_when(process, lambda: steps_taken(tmp_path / "out" / CHECKPOINT) >= STEPS + 2)  # in the second epoch
    assert read_work_record(tmp_path / "out" / "finetune.json")["state"] == "running"
    assert steps_taken(tmp_path / "out" / CHECKPOINT) < 3 * STEPS
    resumed = run(per_device_train_batch_size=4, num_train_epochs=3)
    assert resumed["result"] == undisturbed["result"]
    assert_same_weights(tmp_path / "out", tmp_path / "undisturbed")


def test_other_settings_are_refused(run: Run) -> None:
    run(num_train_epochs=1)
    with pytest.raises(FingerprintMismatchError, match=naming("learning_rate: 0.001", "0.0005", "--output-dir")):
        run(num_train_epochs=1, learning_rate=5e-4)
    with pytest.raises(FingerprintMismatchError, match=naming("seed: 42", "1", "--output-dir")):
        run(num_train_epochs=1, seed=1)


def test_the_record_tells_the_precision_and_it_stays(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "has_fast_bf16", lambda: False)
    monkeypatch.delenv(MIXED_PRECISION, raising=False)
    assert run(output_dir=tmp_path / "fp32", num_train_epochs=1)["settings"]["precision"] == "fp32"
    monkeypatch.setenv(MIXED_PRECISION, "bf16")
    assert run(output_dir=tmp_path / "bf16", num_train_epochs=1)["settings"]["precision"] == "bf16"
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "fp32", tmp_path / "bf16")
    with pytest.raises(FingerprintMismatchError, match=naming("precision: fp32", "bf16")):
        run(output_dir=tmp_path / "fp32", num_train_epochs=1)
    monkeypatch.setenv(MIXED_PRECISION, "fp16")
    with pytest.raises(ConfigError, match=naming("ACCELERATE_MIXED_PRECISION=fp16: ", "bf16", "fp32")):
        run()
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_model_is_left_as_it_is(run: Run, work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "bert", tmp_path / "bert")
    with pytest.raises(FingerprintMismatchError, match=naming("bert/config.json", "--output-dir")):
        run(model_name_or_path=str(tmp_path / "bert"), output_dir=tmp_path / "bert")
    same = filecmp.cmpfiles(work / "bert", tmp_path / "bert", [path.name for path in (work / "bert").iterdir()])[0]
    assert sorted(same) == sorted(path.name for path in (tmp_path / "bert").iterdir())


def test_other_rows_are_refused(learn_words: Run, word_task: MakeTask) -> None:
    word_task(("ash", "birch"))
    learn_words(num_train_epochs=1)
    word_task(("ash", "birch"), rows=20)
    with pytest.raises(FingerprintMismatchError, match=naming("rows.train: ")):
        learn_words(num_train_epochs=1)


def test_a_finished_run_is_not_repeated(run: Run, tmp_path: Path) -> None:
    first = run(num_train_epochs=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert run(num_train_epochs=1, save_steps=7) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_the_same_seed_gives_the_same_teacher(run: Run, tmp_path: Path) -> None:
    results = [run(output_dir=tmp_path / name, seed=seed)["result"] for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert results[0] == results[1]
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "a", tmp_path / "c")


def write_scored_words(tmp_path: Path) -> None:
    """A task of scores: 1 for one word and 5 for the other."""
    manifest: dict[str, object] = {
        "name": "words",
        "type": "regression",
        "score_range": [0, 5],
        "metrics": ["pearson", "spearmanr"],
    }
    manifest |= {"columns": {"sentence1": "text", "label": "score"}, "splits": {"train": None}}
    manifest |= {"bins": {"low": 1.0, "high": 5.0, "width": 0.2}}
    (tmp_path / "words.yaml").write_text(json.dumps(manifest))
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train.jsonl", [{"text": WORDS[k % 2], "score": (1, 5)[k % 2]} for k in range(60)])


@pytest.mark.parametrize(("objective", "outputs"), [(None, 1), ("regression", 1), ("classification", 21)])
def test_scores_are_learned_as_one_number_or_as_bins(
    objective: str | None, outputs: int, learn_words: Run, tmp_path: Path
) -> None:
    write_scored_words(tmp_path)
    settings = {"model_name_or_path": tiny_bert(tmp_path), "learning_rate": 3e-3, "num_train_epochs": 10}
    learn_words(objective=objective, **settings)
    target, logits_NC, _, score_N = ask(load_task(manifest=tmp_path / "words.yaml"), tmp_path, "train")
    assert np.abs(predicted_scores(target, logits_NC) - score_N).max() < 0.5
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.num_labels == outputs
    if outputs == 21:
        assert [model.config.id2label[k] for k in (0, 1, 20)] == ["1", "1.2", "5"]


def test_a_new_head_for_scores_starts_at_their_mean(learn_words: Run, tmp_path: Path) -> None:
    write_scored_words(tmp_path)
    learn_words(model_name_or_path=tiny_bert(tmp_path), learning_rate=1e-9, num_train_epochs=1)
    _, logits_NC, _, _ = ask(load_task(manifest=tmp_path / "words.yaml"), tmp_path, "train")
    assert logits_NC.mean() == pytest.approx(3, abs=0.5)
    # A trained head goes on from where it is.
    (tmp_path / "data" / "train.jsonl").unlink()
    write_rows(tmp_path / "data" / "train.jsonl", [{"text": WORDS[k % 2], "score": 5} for k in range(60)])
    shutil.copytree(tmp_path / "out", tmp_path / "trained")
    shutil.rmtree(tmp_path / "out")
    learn_words(model_name_or_path=str(tmp_path / "trained"), learning_rate=1e-9, num_train_epochs=1)
    _, again_NC, _, _ = ask(load_task(manifest=tmp_path / "words.yaml"), tmp_path, "train")
    assert again_NC == pytest.approx(logits_NC, abs=1e-3)


def test_rows_without_gold_are_skipped(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    word_task(("ash", "birch"), rows=20)
    encoder = tiny_bert(tmp_path)
    learn_words(model_name_or_path=encoder, output_dir=tmp_path / "labelled", num_train_epochs=1)
    with (tmp_path / "data" / "train.jsonl").open("a") as stream:
        stream.writelines([json.dumps({"text": "candle door engine", "label": -1}) + "\n"] * 7)
    learn_words(model_name_or_path=encoder, output_dir=tmp_path / "mixed", num_train_epochs=1)
    assert_same_weights(tmp_path / "labelled", tmp_path / "mixed")


def test_an_encoder_that_knows_none_of_the_words_is_refused(learn_words: Run, word_task: MakeTask, work: Path) -> None:
    word_task(("ash", "birch"), rows=20)
    with pytest.raises(DataError, match=naming("bert: ", "100%", "20 checked rows")):
        learn_words(model_name_or_path=str(work / "bert"))


def test_without_a_dev_split_the_last_epoch_is_the_best(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    word_task(("ash", "birch"), rows=20)
    (tmp_path / "data" / "validation.jsonl").unlink()
    assert learn_words()["result"]["best"]["epoch"] == 2


def test_without_a_train_split_there_is_nothing_to_learn(learn_words: Run, word_task: MakeTask, tmp_path: Path) -> None:
    word_task(("ash", "birch"), rows=20)
    (tmp_path / "data" / "train.jsonl").unlink()
    with pytest.raises(DataError, match=naming("'words': ", "data")):
        learn_words()


def test_an_objective_that_the_task_has_not_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--objective regression: ", "'opinion'")):
        run(objective="regression")
    assert not (tmp_path / "out").exists()


def tiny_bert(tmp_path: Path) -> str:
    """An encoder that knows the words, with weights large enough to tell them apart from the start."""
    create_tiny_bert(tmp_path / "encoder", WORDS, hidden_size=32, num_layers=1)
    make_louder(tmp_path / "encoder")
    return str(tmp_path / "encoder")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def steps_taken(checkpoint: Path) -> int:
    """Steps that a checkpoint has behind it; 0 without one."""
    if not checkpoint.exists():
        return 0
    with safe_open(checkpoint, framework="np") as file:
        return int(json.loads(file.metadata()["progress"])["step"])


def ask(task: Task, tmp_path: Path, split: str) -> tuple[Target, Floats, Ints, Floats]:
    """The predictions of the saved weights for a split, and its gold."""
    teacher = load_teacher(task, str(tmp_path / "out"), None, (), 32)
    rows = load_source(task, tmp_path / "data").splits[split]
    with inference_mode(teacher.model.device, "fp32"):
        logits_NC = teacher_logits(teacher, tokenize(teacher.tokenizer, *sentences(rows), 32), 64)
    return (teacher.target, logits_NC, *gold_arrays(teacher.target, rows))


def accuracy(task: Task, tmp_path: Path, split: str = "validation") -> float:
    _, logits_NC, label_N, _ = ask(task, tmp_path, split)
    return float((logits_NC.argmax(axis=1) == label_N).mean())


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_labels_apart_are_learnt_by_binary_cross_entropy(work: Path, tmp_path: Path) -> None:
    manifest = write_topics(tmp_path, (work / "sentences.txt").read_text().splitlines())
    flags = {"manifest": manifest, "data": tmp_path, "model_name_or_path": str(work / "bert")}
    more = {"output_dir": tmp_path / "teacher", "num_train_epochs": 3, "learning_rate": 3e-3, "max_seq_length": 32}
    record = finetune(FinetuneSettings.from_flags(**flags, **more), "distill finetune-teacher")
    assert record["result"]["best"]["metrics"]["validation"].keys() >= {"micro_f1", "macro_f1"}
    assert json.loads((tmp_path / "teacher/config.json").read_text())["problem_type"] == "multi_label_classification"
    half = torch.zeros(1, 2)
    loss = classifier_loss(Target(kind="labels", names=("a", "b")), half + math.log(3), torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)


def test_without_a_dev_split_nothing_tells_how_good_it_is(work: Path, tmp_path: Path) -> None:
    data = shutil.copytree(work / "data", tmp_path / "data", ignore=shutil.ignore_patterns("*validation*"))
    flags = ["--manifest", work / "opinion.yaml", "--data", data, "--model-name-or-path", work / "bert"]
    told = invoke("finetune-teacher", *flags, "--output-dir", tmp_path / "out", "--num-train-epochs", 1)
    assert told.exit_code == 0, told.stderr
    assert "warning: " in told.stderr
