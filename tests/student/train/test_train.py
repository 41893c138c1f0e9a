import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pipeline.errors import ConfigError, DataError, DistillError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import Record, read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME
from pipeline.settings import as_flags
from pipeline.training.run import CHECKPOINT
from student import settings as config_module
from student.data import load_examples, make_batches
from student.lessons.examples import score_student
from student.model.architecture import StudentConfig
from student.model.build_config import build_config
from student.model.card import summary
from student.model.student import Student
from student.predict.predictor import Predictor
from student.settings import HeadKind, TrainSettings
from student.train import train
from student.training_data import task_facts
from teacher.dumps import dump
from tests.helpers.commands import distill, kill_when
from tests.helpers.dumps import TRAIN_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import rewritten, with_logits
from tests.helpers.students import tiny_config, weights


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_run_folder_holds_all_that_is_needed(opinion_run: Path, opinion_set: ExampleSet) -> None:
    names = sorted(path.name for path in opinion_run.iterdir())
    assert names == [
        "README.md",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "run.json",
        "student.distill",
        "tokenizer.json",
    ]
    assert (opinion_run / "tokenizer.json").read_bytes() == (opinion_set.root / "tokenizer.json").read_bytes()


def test_record_tells_how_to_repeat_the_run(opinion_run: Path, opinion_set: ExampleSet) -> None:
    record = read_record(opinion_run / "run.json")
    settings, result = record["settings"], record["result"]
    assert record["state"] == "finished"
    assert record["command"] == "distill train-student --task opinion"
    assert settings["query"] == "select * from examples where split = 'train' order by source_row, variant"
    assert settings["rows"] == 96
    assert settings["rows_sha256"] == load_examples(opinion_set, "train").keys_sha256
    assert settings["logit_set_fingerprints"] == [opinion_set.record.fingerprint]
    assert settings["seed"] == 42
    assert [entry["epoch"] for entry in result["history"]] == [1, 2]
    assert all(set(entry["metrics"]["validation"]) == {"accuracy"} for entry in result["history"])
    assert result["best"] in result["history"]
    assert result["versions"]["torch"] == version("torch")


def test_record_of_a_selection(store: Path, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path, where="source_row < 10"), "")
    whole = "from examples where split = 'train' and (source_row < 10\n) order by source_row, variant"
    assert record["settings"]["query"] == f"select * {whole}"
    assert record["settings"]["rows"] == 10


def test_the_same_seed_gives_the_same_bits_and_another_does_not(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    again = train(tiny_config(store / "opinion", tmp_path / "again"), "another command line")
    train(tiny_config(store / "opinion", tmp_path / "other", seed=1), "")
    assert same_weights(tmp_path / "again", opinion_run)
    assert not same_weights(tmp_path / "other", opinion_run)
    assert again["result"] == read_record(opinion_run / "run.json")["result"]


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 1.0},
        {"temperature": 4.0},
        {"hidden_dropout": 0.0},
        {"per_device_train_batch_size": 7},
        {"warmup_steps": 3},
        {"max_grad_norm": 1e-4},
    ],
)
def test_settings_reach_the_weights(store: Path, opinion_run: Path, tmp_path: Path, change: dict[str, float]) -> None:
    train(tiny_config(store / "opinion", tmp_path, **change), "")
    assert not same_weights(tmp_path, opinion_run)


def test_unused_tokens_keep_their_initial_values(opinion_set: ExampleSet, tmp_path: Path) -> None:
    train(tiny_config(opinion_set.root, tmp_path, learning_rate=0.1), "")
    used = np.unique(np.concatenate([load_examples(opinion_set, s).ids1.flat for s in ("train", "validation")]))
    trained = Student.load(tmp_path).encoder.tables()
    unused = np.setdiff1d(np.arange(opinion_set.record.tokenizer.vocabulary_size), used)
    assert len(unused) > 5
    for table in trained:
        center = torch.eye(3).flatten() if table.embedding_dim == 9 else torch.zeros(5)
        noise_of_unused = (table.weight[unused] - center).abs()
        noise_of_used = (table.weight[used] - center).abs()
        assert noise_of_unused.max() < 0.06 < noise_of_used.max()


def test_a_student_learns(store: Path, tmp_path: Path) -> None:
    changes = {"alpha": 1.0, "num_train_epochs": 40, "early_stopping_patience": 40, "hidden_dropout": 0.0}
    record = train(tiny_config(store / "opinion", tmp_path, **changes), "")
    losses = [entry["loss"] for entry in record["result"]["history"]]
    assert losses[0] == pytest.approx(np.log(2), rel=0.3)
    assert losses[-1] < 0.35


@pytest.mark.parametrize(("epochs", "patience", "expected"), [(6, 3, 4), (6, 1, 2), (3, 5, 3)])
def test_patience_counts_epochs_without_a_better_metric(
    store: Path, tmp_path: Path, epochs: int, patience: int, expected: int
) -> None:
    # Nothing is learned, so the first epoch stays the best.
    changes = {"num_train_epochs": epochs, "early_stopping_patience": patience, "learning_rate": 1e-30}
    record = train(tiny_config(store / "opinion", tmp_path, **changes), "")
    assert len(record["result"]["history"]) == expected
    assert record["result"]["best"]["epoch"] == 1


def test_the_best_epochs_weights_are_kept(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    changes = {"num_train_epochs": 40, "early_stopping_patience": 3, "learning_rate": 0.1, "alpha": 1.0}
    result = train(tiny_config(ratings["score"].root, tmp_path, **changes), "")["result"]
    pearson = [entry["metrics"]["validation"]["pearson"] for entry in result["history"]]
    best = int(np.argmax(pearson))
    assert 0 < best == len(pearson) - 4
    assert result["best"] == result["history"][best]
    kept = score_student(Student.load(tmp_path), load_examples(ratings["score"], "validation"))
    assert kept["pearson"] == pytest.approx(pearson[best], abs=1e-6)
    assert abs(pearson[-1] - pearson[best]) > 1e-4


def test_a_loss_that_is_not_finite_stops_the_run(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DistillError, match=naming("step 3", "nan", "--learning-rate")):
        train(tiny_config(store / "opinion", tmp_path, learning_rate=1e12), "")


def test_without_a_dev_split_the_last_epoch_is_the_best(work: Path, teachers: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="train"), "")
    changes = {"num_train_epochs": 3, "early_stopping_patience": 1}
    result = train(tiny_config(tmp_path / "store" / "opinion", tmp_path / "run", **changes), "")["result"]
    assert [entry["metrics"] for entry in result["history"]] == [{}, {}, {}]
    assert result["best"]["epoch"] == 3


def test_a_set_without_a_train_split_is_refused(work: Path, teachers: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="validation"), "")
    with pytest.raises(DataError, match=naming("store/opinion: ", "validation")):
        train(tiny_config(tmp_path / "store" / "opinion", tmp_path / "run"), "")


def test_a_finished_run_is_not_repeated(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    (run / "model.safetensors").unlink()
    record = train(tiny_config(store / "opinion", run), "")
    assert record == read_record(opinion_run / "run.json")
    assert not (run / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"learning_rate": 0.5}, naming("learning_rate: 0.01", "0.5")),
        ({"embedding": "cmow", "vector_size": None}, naming("embedding: hybrid", "cmow")),
        ({"where": "label = 1"}, naming("query: ", "rows: 96", "rows_sha256: ", "where: ", "label = 1")),
    ],
)
def test_a_run_with_other_settings_is_refused(
    store: Path, opinion_run: Path, tmp_path: Path, change: dict[str, object], match: str
) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    with pytest.raises(FingerprintMismatchError, match=match):
        train(tiny_config(store / "opinion", run, **change), "")
    assert same_weights(run, opinion_run)


def test_a_run_on_another_set_is_refused(work: Path, store: Path, opinion_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    dump(dump_config(work, "opinion", tmp_path / "store", max_seq_length=6), "")
    with pytest.raises(FingerprintMismatchError, match="logit_set_fingerprints: "):
        train(tiny_config(tmp_path / "store" / "opinion", run), "")


def test_where_the_set_lies_does_not_matter(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "elsewhere" / "opinion")
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = train(tiny_config(copy, run), "")
    assert record["result"] == read_record(opinion_run / "run.json")["result"]


def test_an_unverified_set_needs_a_flag(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "store" / "opinion")
    record = read_record(copy / FILE_NAME)
    (copy / FILE_NAME).write_text(json.dumps(record | {"state": "complete"}))
    with pytest.raises(IntegrityError, match=naming("store/opinion: ", "'complete'", "--allow-unverified")):
        train(tiny_config(copy, tmp_path / "run"), "")
    assert not (tmp_path / "run").exists()
    train(tiny_config(copy, tmp_path / "run", allow_unverified=True), "")
    assert same_weights(tmp_path / "run", opinion_run)


def test_a_changed_shard_is_refused(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "opinion")
    shard = next((copy / "examples").glob("train-*"))
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match=naming(shard.name, "SHA-256")):
        train(tiny_config(copy, tmp_path / "run"), "")


def test_nothing_to_train_from_is_a_clear_error(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--task NAME", "--set SET")):
        train(tiny_config(store / "opinion", tmp_path, set=()), "")
    with pytest.raises(DataError, match=naming("'opinio'", "'opinion'")):
        train(tiny_config(store / "opinion", tmp_path, set="opinio"), "")


def test_an_empty_selection_leaves_no_run(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("store/opinion: ", "--where 'label = 7'")):
        train(tiny_config(store / "opinion", tmp_path / "run", where="label = 7"), "")
    assert not (tmp_path / "run").exists()


def test_the_task_flag_names_set_and_run(
    store: Path, opinion_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_config(store / "opinion", tmp_path, set=(), task="opinion")
    train(config.model_copy(update={"output_dir": None}), "")
    assert same_weights(tmp_path / "runs" / "opinion", opinion_run)


def architecture(logit_set: ExampleSet, **flags: object) -> StudentConfig:
    return build_config(TrainSettings.from_flags(**flags), task_facts(logit_set))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (20, 400, True)),
        ({"embedding": "cmow"}, (28, 0, True)),
        ({"embedding": "cbow"}, (0, 784, False)),
        ({"embedding": "cmow", "bidirectional": False, "matrix_size": 7}, (7, 0, False)),
    ],
)
def test_default_tables_have_the_papers_sizes_and_the_head_a_smaller_one(
    roles_set: ExampleSet, flags: dict[str, object], expected: tuple[int, int, bool]
) -> None:
    config = architecture(roles_set, **flags)
    assert (config.matrix_size, config.vector_size, getattr(config.encoder, "bidirectional", False)) == expected
    assert config.is_pair
    assert config.hidden_size == 128
    assert config.target.names == ("different", "same")
    assert config.tokenizer_sha256 == roles_set.record.tokenizer.sha256


@pytest.mark.parametrize(("embedding", "flag"), [("cbow", "matrix_size"), ("cmow", "vector_size")])
def test_a_size_that_the_embedding_has_not_is_refused(opinion_set: ExampleSet, embedding: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=naming(f"--{flag.replace('_', '-')}: ", "--embedding hybrid")):
        architecture(opinion_set, **{"embedding": embedding, flag: 5})


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"embedding": "cmow"}, naming("--pooling: ", "--embedding cbow")),
        ({"head": "bilstm"}, naming("--pooling sum+max: ", "--head bilstm")),
    ],
)
def test_maxima_where_there_are_none_are_refused(opinion_set: ExampleSet, flags: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        architecture(opinion_set, pooling="sum+max", **flags)
    assert architecture(opinion_set, **flags).encoder.model_dump().get("pooling") in ("sum", None)  # CMOW has none


def test_a_student_of_sums_and_maxima_is_trained(store: Path, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path), "")
    assert record["settings"]["pooling"] == "sum+max"  # the default
    kept = Student.load(tmp_path)
    assert summary(kept.config)["embedding"].startswith("Hybrid: sums and maxima of vectors of 5 and")
    assert kept.encoder.size == 5 + 5 + 2 * 9 + 32
    assert np.isfinite(Predictor(tmp_path).logits(["the food was dull ."])).all()


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"alpha": 1.5}, naming("--alpha: ", "1.5")),
        ({"temperature": 0}, naming("--temperature: ", "0")),
        ({"embedding": "elmo"}, naming("--embedding elmo: ", "hybrid")),
    ],
)
def test_flags_out_of_range_are_refused(flags: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        TrainSettings.from_flags(**flags)


LENGTHS = np.array([3, 40] * 64)


@pytest.mark.parametrize(("head", "mixes"), [("mlp", False), ("linear", False), ("bilstm", False), ("cnn", True)])
def test_only_a_cnn_sees_batches_of_mixed_lengths(head: HeadKind, mixes: bool) -> None:
    made = make_batches(head, LENGTHS, batch_size=32, seed=42)
    first, second = ([made.at(4 * epoch + step) for step in range(4)] for epoch in (0, 1))
    for batches in (first, second):
        assert sorted(row for rows in batches for row in rows) == list(range(len(LENGTHS)))
        assert [len(set(LENGTHS[rows])) > 1 for rows in batches] == [mixes] * 4
    assert first != second


EPOCHS = 40


def long_config(logit_set: Path, output_dir: Path, **changes: object) -> TrainSettings:
    size = {"num_train_epochs": EPOCHS, "early_stopping_patience": EPOCHS, "per_device_train_batch_size": 4}
    return tiny_config(logit_set, output_dir, **size | changes)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_student(store: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    other = rewritten(roles_set, tmp_path / "other", with_logits(lambda row: [row % 5, 2.0]))
    query = "select source_row, variant, mix([roles.logits, other.logits], [1, 2]) as logits, "
    query += "1 + roles.label as weight from roles join other using (split, source_row, variant)"
    changes = {"set": (str(store / "roles"), str(other.root)), "query": query}
    interrupted, undisturbed = (
        long_config(store / "roles", tmp_path / name, **changes) for name in ("killed", "whole")
    )
    killed = tmp_path / "killed"
    kill_when(distill("train-student", *as_flags(interrupted)), (killed / CHECKPOINT).exists)
    assert json.loads((killed / "run.json").read_text())["state"] == "running"
    with safe_open(killed / CHECKPOINT, framework="pt") as file:
        done = json.loads(file.metadata()["progress"])["history"]
    assert 1 <= len(done) < EPOCHS

    resumed, whole = train(interrupted, "again"), train(undisturbed, "once")
    assert resumed["state"] == "finished"
    assert resumed["result"] == whole["result"]
    assert resumed["result"]["history"][: len(done)] == done
    assert not (killed / CHECKPOINT).exists()
    ours, theirs = weights(killed), weights(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


STILL = {"num_train_epochs": None, "learning_rate": 1e-30, "early_stopping_patience": 1}


@pytest.mark.parametrize(
    ("rows", "epochs"),
    [(1, 20), (50_000, 20), (50_001, 19), (67_349, 14), (250_000, 4), (333_333, 3), (350_000, 3), (10**8, 3)],
)
def test_many_rows_are_read_less_often(rows: int, epochs: int) -> None:
    assert TrainSettings.from_flags().for_rows(rows).epochs.num_train_epochs == epochs
    assert TrainSettings.from_flags(num_train_epochs=7).for_rows(rows).epochs.num_train_epochs == 7


def epochs_of(record: Record) -> int:
    return int(record["settings"]["num_train_epochs"])


def test_the_rows_that_are_chosen_count_and_the_number_is_a_setting(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_module, "ROWS_READ", 6 * TRAIN_ROWS)
    record = train(tiny_config(store / "opinion", tmp_path / "all", **STILL), "")
    assert epochs_of(record) == 6
    again = tiny_config(store / "opinion", tmp_path / "all", **STILL | {"num_train_epochs": 6})
    assert train(again, "") == record  # the same run, and finished
    half = tiny_config(store / "opinion", tmp_path / "half", where=f"source_row < {TRAIN_ROWS // 2}", **STILL)
    assert epochs_of(train(half, "")) == 12


def test_the_rows_of_all_tasks_count(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "ROWS_READ", 6 * TRAIN_ROWS)
    config = tiny_config(store / "opinion", tmp_path, set=(), tasks="opinion,roles", **STILL)
    assert epochs_of(train(config, "")) == 3
