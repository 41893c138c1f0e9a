"""Pretraining: what a position sees, what the loss is, and that a stopped run ends where an undisturbed one does."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from typer.testing import CliRunner

from distill.commands import app
from pipeline import settings as trees
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet
from student.encoders.specs import Hybrid
from student.lessons.masked_words import evaluate_mlm, masked_batches, read_pool
from student.lessons.pretraining import BETAS, EPS, new_student
from student.model.architecture import MaskedWordConfig
from student.model.config_file import read_encoder_config
from student.model.pretrained import MaskedWordStudent, build_masked_word_config
from student.pretrain import pretrain
from student.pretrain_settings import PretrainSettings
from student.train import train
from tests.helpers.commands import distill, distill_in_two_processes, kill_when
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights

CONFIG = MaskedWordConfig(
    corpus="tiny",
    num_outputs=12,
    vocabulary_size=12,
    pad_id=0,
    tokenizer_sha256="",
    max_seq_length=16,
    encoder=Hybrid(matrix_size=3, vector_size=4, initializer_range=0.3),
)
FORWARD = 4 + 9  # numbers of a position's prefix; its suffix has as many


def config(token_store: Path, output_dir: Path, **changes: Any) -> PretrainSettings:
    settings: dict[str, Any] = {"set": "sampled", "store": token_store, "output_dir": output_dir, "matrix_size": 4}
    settings |= {"vector_size": 8, "per_device_train_batch_size": 16, "save_steps": 4, "num_train_epochs": 2}
    return PretrainSettings.from_flags(**settings | changes)


@given(
    sentence=st.lists(st.integers(1, 11), min_size=1, max_size=10),
    place=st.integers(0, 9),
    token=st.integers(1, 11),
    padding=st.integers(0, 3),
)
def test_a_position_sees_its_prefix_and_suffix_alone(sentence: list[int], place: int, token: int, padding: int) -> None:
    """Changing one token changes the prefixes that end there or later and the suffixes that begin there or before."""
    torch.manual_seed(0)
    student, place = MaskedWordStudent(CONFIG).double(), place % len(sentence)
    changed = [*sentence[:place], token, *sentence[place + 1 :]]
    everywhere = (torch.zeros(len(sentence), dtype=torch.int64), torch.arange(len(sentence)))
    before, after = (student(torch.tensor([ids + [0] * padding]), *everywhere) for ids in (sentence, changed))
    moved_LF = (before - after).abs() > 1e-12
    expected = token != sentence[place]
    for position in range(len(sentence)):
        assert bool(moved_LF[position, :FORWARD].any()) == (expected and position >= place)
        assert bool(moved_LF[position, FORWARD:].any()) == (expected and position <= place)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_an_epoch_has_every_row_once(token_store: Path, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("student.lessons.pretraining.POOL_ROWS", 40)
    batches = [
        masked_batches(MaskedWordSet.open(token_store / "sampled"), 0, 7, 3, processes, k) for k in range(processes)
    ]
    steps = batches[0].num_steps(1)
    seen = [
        tuple(row[row != 0].tolist())
        for step in range(steps)
        for of_process in batches
        for row in of_process.at(step).ids_BL.numpy()
    ]
    token_set = MaskedWordSet.open(token_store / "sampled")
    rows = read_pool(token_set, 0, [group for group, _ in token_set.groups("train")]).rows
    expected = sorted(tuple(rows.ids[row].tolist()) for row in range(len(rows)))
    assert set(seen) == set(expected)
    if processes == 1:
        assert sorted(seen) == expected
        assert seen != [
            tuple(row[row != 0].tolist())
            for step in range(steps, batches[0].num_steps(2))
            for row in batches[0].at(step).ids_BL.numpy()
        ]


def test_maxima_of_masked_positions_are_refused(token_store: Path, tmp_path: Path) -> None:
    flags = PretrainSettings.from_flags(
        set="sampled", store=token_store, output_dir=tmp_path / "run", pooling="sum+max"
    )
    with pytest.raises(ConfigError, match=naming("--pooling sum+max: ")):
        pretrain(flags, "")
    assert not (tmp_path / "run").exists()


def test_a_batch_has_what_was_said_about_its_own_positions(token_store: Path) -> None:
    token_set = MaskedWordSet.open(token_store / "topk")
    groups = [group for group, _ in token_set.groups("train")]
    pool = read_pool(token_set, 0, groups)
    batch = pool.batch([5, 2])
    rows = pool.rows
    assert batch.row_P.tolist() == [0] * len(rows.positions[5]) + [1] * len(rows.positions[2])
    assert batch.place_P.tolist() == [*rows.positions[5], *rows.positions[2]]
    assert batch.target_P.tolist() == [*rows.targets[5], *rows.targets[2]]
    table = token_set.read_group(groups[0])
    said = table.column("candidates").to_pylist()
    assert batch.predictions["candidates"].to_pylist() == [*said[5], *said[2]]


@pytest.mark.parametrize("codec", ["hidden", "sampled", "topk", "dense"])
def test_a_student_learns_from_every_codec(token_store: Path, tmp_path: Path, codec: str) -> None:
    record = pretrain(config(token_store, tmp_path, set=codec, learning_rate=2e-2, num_train_epochs=6), "x")
    first, *_, last = record["result"]["history"]
    assert last["metrics"]["validation"]["teacher_loss"] < first["metrics"]["validation"]["teacher_loss"]
    student = MaskedWordStudent.load(tmp_path)
    assert student.config.num_outputs == MaskedWordSet.open(token_store / codec).record.codec.vocabulary_size


def test_the_first_losses_are_those_of_plain_torch(
    token_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense AdamW and autograd on logits of all positions, from a bias counted by hand."""
    monkeypatch.setattr("student.lessons.masked_words.has_fast_bf16", lambda: False)
    rates = {"learning_rate": 2e-2, "warmup_steps": 0.0, "max_grad_norm": 0.5}
    settings = config(token_store, tmp_path, save_steps=1, max_steps=6, **rates)
    history = pretrain(settings, "x")["result"]["history"]

    token_set = MaskedWordSet.open(token_store / "sampled")
    rows = read_pool(token_set, 0, [group for group, _ in token_set.groups("train")]).rows
    student = new_student(
        MaskedWordStudent, build_masked_word_config(settings.encoder, token_set.record), settings.seed
    )
    count_V = torch.bincount(torch.from_numpy(rows.targets.flat), minlength=student.config.num_outputs) + 1
    with torch.no_grad():
        student.head.weight.zero_()
        student.head.bias.copy_((count_V / count_V.sum()).log())
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-2, betas=BETAS, eps=EPS, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 6)
    batches, losses = masked_batches(token_set, student.config.pad_id, 16, settings.seed), []
    for step in range(6):
        batch = batches.at(step)
        log_q_PV = student.head(student(batch.ids_BL, batch.row_P, batch.place_P)).log_softmax(dim=1)
        teacher_PV = torch.zeros_like(log_q_PV)
        for position, (tokens, counts) in enumerate(
            zip(*(c.to_pylist() for c in batch.predictions.values()), strict=True)
        ):
            teacher_PV[position, tokens] = torch.tensor(counts, dtype=torch.float32) / 20
        loss = (functional.nll_loss(log_q_PV, batch.target_P) - (teacher_PV * log_q_PV).sum(dim=1).mean()) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    assert [entry["loss"] for entry in history] == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]


def test_tokens_of_no_training_row_end_neutral(token_store: Path, tmp_path: Path) -> None:
    """The first step moves the head alone, whose weights are 0 until then."""
    settings = {"per_device_train_batch_size": 2, "max_steps": 2}
    record = pretrain(config(token_store, tmp_path, **settings), "x")
    seed = record["settings"]["seed"]
    ids = masked_batches(MaskedWordSet.open(token_store / "sampled"), 0, 2, seed).at(1).ids_BL
    student = MaskedWordStudent.load(tmp_path)
    used = student.encoder.used_ids().tolist()
    assert used == sorted({student.config.pad_id, *ids.flatten().tolist()})
    assert student.config.used_rows == len(used) < student.config.num_tokens
    assert f"{len(used)} of {student.config.num_tokens} tokens known" in (tmp_path / "README.md").read_text()
    again = evaluate_mlm(student, MaskedWordSet.open(token_store / "sampled"), "validation")
    assert record["result"]["history"][-1]["metrics"]["validation"] == pytest.approx(again)


def test_a_stopped_run_ends_where_an_undisturbed_one_does(token_store: Path, tmp_path: Path) -> None:
    whole = pretrain(config(token_store, tmp_path / "whole"), "x")
    values = trees.given(config(token_store, tmp_path / "killed"))
    named = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    process = distill("pretrain-student", *itertools.chain(*named))
    kill_when(process, lambda: (tmp_path / "killed" / "checkpoint.safetensors").exists())
    again = pretrain(config(token_store, tmp_path / "killed"), "x")
    assert again["result"]["history"] == whole["result"]["history"]
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "killed")[name], tensor)
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_two_processes_train_what_one_with_their_batches_does(token_store: Path, tmp_path: Path) -> None:
    """The gradient of a step is that of both processes' rows together: a batch of twice the size."""
    settings = config(token_store, tmp_path / "two", per_device_train_batch_size=500, max_steps=2, learning_rate=1e-2)
    named = ((f"--{n.replace('_', '-')}", v) for n, v in trees.given(settings).items())
    distill_in_two_processes("pretrain-student", *itertools.chain(*named))
    # one batch holds all rows, so both processes have the same one: the mean over both is that of one
    pretrain(config(token_store, tmp_path / "one", **_same(settings)), "x")
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, rtol=1e-3, atol=1e-4)


def _same(settings: PretrainSettings) -> dict[str, Any]:
    names = ("per_device_train_batch_size", "max_steps", "learning_rate")
    return {name: getattr(settings, name) for name in names}


def test_it_feeds_a_student_of_a_task(token_store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    pretrain(config(token_store, tmp_path / "mlm"), "x")
    sizes = {"matrix_size": 4, "vector_size": 8}
    run = tiny_config(opinion_set.root, tmp_path / "run", init=tmp_path / "mlm", learning_rate=1e-30, **sizes)
    train(run, "x")
    pretrained, trained = weights(tmp_path / "mlm"), weights(tmp_path / "run")
    assert "{{" not in (tmp_path / "mlm" / "README.md").read_text()
    tables = [name for name in pretrained if name.startswith("encoder.")]
    assert len(tables) == 3
    assert all(torch.equal(pretrained[name], trained[name]) for name in tables)


def test_what_is_not_a_pretrained_student(token_store: Path, opinion_run: Path, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(opinion_run)):
        MaskedWordStudent.load(opinion_run)
    pretrain(config(token_store, tmp_path / "mlm", max_steps=1), "x")
    values = read_record(tmp_path / "mlm" / CONFIG_FILE)
    (tmp_path / "mlm" / CONFIG_FILE).write_text(json.dumps(values | {"format_version": 2}))
    with pytest.raises(IntegrityError, match=naming("mlm/config.json: ", "format_version: ", "2")):
        read_encoder_config(tmp_path / "mlm" / CONFIG_FILE)
    (tmp_path / "mlm" / CONFIG_FILE).write_text(json.dumps(values))
    (tmp_path / "mlm" / WEIGHTS_FILE).write_bytes(b"torn")
    with pytest.raises(IntegrityError, match=naming("mlm/model.safetensors: ")):
        MaskedWordStudent.load(tmp_path / "mlm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 2.0}, naming("--temperature 2: ", "'sampled-20'", "--temperature 1")),
        ({"set": "topk", "temperature": 3.0}, naming("--temperature 3: ", "'topk-10'", "--temperature 1")),
        ({"embedding": "cbow"}, naming("--matrix-size: ", "--embedding cmow")),
        ({"embedding": "recurrent", "matrix_size": None}, naming("--embedding recurrent: ")),
    ],
)
def test_wrong_flags(token_store: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pretrain(config(token_store, tmp_path, **changes), "x")
    assert not list(tmp_path.iterdir())


def test_another_setting_is_another_run(token_store: Path, tmp_path: Path) -> None:
    done = pretrain(config(token_store, tmp_path, max_steps=2), "x")
    assert pretrain(config(token_store, tmp_path, max_steps=2), "y") == done
    with pytest.raises(FingerprintMismatchError, match=naming("alpha: 0.5", "0.9")):
        pretrain(config(token_store, tmp_path, max_steps=2, alpha=0.9), "x")


@pytest.mark.parametrize(("place", "message"), [(100, "SHA-256"), (-12, r"words/train-00000-of-00003\.parquet: ")])
def test_a_damaged_shard_is_refused(token_store: Path, tmp_path: Path, place: int, message: str) -> None:
    root = Path(shutil.copytree(token_store / "sampled", tmp_path / "sampled"))
    shard = MaskedWordSet.open(root).shards("train")[0]
    content = bytearray((root / shard.path).read_bytes())
    content[place] ^= 1
    (root / shard.path).write_bytes(content)
    with pytest.raises(IntegrityError, match=message):
        pretrain(config(tmp_path, tmp_path / "run"), "x")


def test_the_command(token_store: Path, tmp_path: Path) -> None:
    flags = [
        "--set",
        "sampled",
        "--store",
        str(token_store),
        "--output-dir",
        str(tmp_path),
        "--max-steps",
        "2",
        "--json",
    ]
    result = CliRunner().invoke(
        app, ["pretrain-student", *flags, "--matrix-size", "3", "--per-device-train-batch-size", "9"]
    )
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["result"]["history"][-1]["step"] == 2
    assert record["settings"]["codec"]["num_samples"] == 20


def test_pretrained_evaluates_on_any_set_of_its_tokenizer(token_store: Path, tmp_path: Path) -> None:
    record = pretrain(config(token_store, tmp_path), "x")
    flags = ["evaluate", str(tmp_path), "--store", str(token_store), "--json"]
    scores = json.loads(CliRunner().invoke(app, flags).stdout)
    for name, values in record["result"]["history"][-1]["metrics"].items():
        assert scores[name] == pytest.approx(values, rel=1e-5)
    own = scores["validation"]
    assert scores["control"]["context_gain"] == pytest.approx(scores["control"]["unigram_loss"] - own["gold_loss"])
    other = json.loads(CliRunner().invoke(app, [*flags, "--set", "dense"]).stdout)["validation"]
    assert other["gold_loss"] == pytest.approx(own["gold_loss"], rel=1e-5)
    assert other["teacher_loss"] != own["teacher_loss"]
    refused = CliRunner().invoke(app, ["predict", str(tmp_path), "some text"])
    assert (refused.exit_code, str(tmp_path) in refused.stderr) == (2, True)


def test_steps_beyond_the_passes_are_told(
    token_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = pretrain(config(token_store, tmp_path, max_steps=10_000, per_device_train_batch_size=500), "x")
    steps = record["settings"]["steps"]
    found = capsys.readouterr().err
    assert all(part in found for part in ("--max-steps 10,000: ", f"{token_store / 'sampled'}", f"{steps}"))
    assert steps < 10_000
