"""``teacher-dump --plan`` against what the dump then comes to, and the arithmetic of a calibration."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet
from teacher.dump.estimate import Plan, classifier_seconds, seconds_of
from teacher.dumps import open_dump
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, corpus_config, dump_config
from tests.helpers.messages import naming

SPLITS = ("train", "validation")


def plan(work: Path, store: Path, task: str = "opinion", **changes: object) -> Plan:
    return open_dump(dump_config(work, task, store, **changes), "plan").plan()


@pytest.fixture
def config_only(tmp_path: Path) -> str:
    """A teacher's folder without weights and tokenizer."""
    BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2).save_pretrained(tmp_path / "config-only")
    return str(tmp_path / "config-only")


@pytest.mark.parametrize(("rows_per_shard", "shards"), [(1000, 2), (40, 3 + 1), (25, 4 + 2), (1, 136)])
def test_rows_and_shards_are_exact(
    rows_per_shard: int, shards: int, work: Path, config_only: str, tmp_path: Path
) -> None:
    result = plan(work, tmp_path / "store", model_name_or_path=config_only, rows_per_shard=rows_per_shard)
    assert result.rows == {"train": TRAIN_ROWS, "validation": VALIDATION_ROWS}
    assert result.shards == shards


def test_no_model_is_loaded_and_nothing_written(work: Path, config_only: str, tmp_path: Path) -> None:
    result = plan(work, tmp_path / "store", model_name_or_path=config_only)
    assert result.seconds is not None
    assert result.seconds > 0
    assert result.memory_bytes is not None
    assert result.memory_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["config-only"]


def test_time_and_memory_are_unknown_without_a_config(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = plan(work, tmp_path / "store", model_name_or_path=str(tmp_path / "nowhere"))
    assert (result.seconds, result.memory_bytes) == (None, None)
    assert result.rows["train"] == TRAIN_ROWS
    assert f"{tmp_path / 'nowhere'}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("called", "is_told"), [("BertModel", True), ("BertForMaskedLM", True), ("BertForSequenceClassification", False)]
)
def test_an_encoder_without_a_head_is_told_of(
    called: str, is_told: bool, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, architectures=[called])
    config.save_pretrained(tmp_path / "bert")
    plan(work, tmp_path / "store", model_name_or_path=str(tmp_path / "bert"))
    assert (f"{called} " in capsys.readouterr().err) == is_told


@pytest.mark.parametrize("windows", [{}, {"doc_stride": 8}])
def test_longer_inputs_than_the_teacher_reads_are_refused(
    windows: dict[str, Any], work: Path, config_only: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=naming("--max-seq-length: 600", config_only, 512)):
        plan(work, tmp_path, model_name_or_path=config_only, max_seq_length=600, **windows)


def test_the_estimates_grow_with_what_they_estimate(work: Path, config_only: str, tmp_path: Path) -> None:
    both = plan(work, tmp_path, model_name_or_path=config_only)
    part = plan(work, tmp_path, model_name_or_path=config_only, splits="validation")
    assert part.rows == {"validation": VALIDATION_ROWS}
    assert part.tokens < both.tokens
    assert part.disk_bytes < both.disk_bytes
    large = plan(work, tmp_path, model_name_or_path=config_only, max_tokens_per_batch=10**6)
    assert large.memory_bytes is not None
    assert both.memory_bytes is not None
    assert large.memory_bytes > both.memory_bytes
    assert plan(work, tmp_path, model_name_or_path=config_only, max_seq_length=4).tokens == 4 * sum(both.rows.values())


def test_the_estimate_of_the_tokens_is_near_the_truth(work: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    counts = [len(ids) + 2 for split in SPLITS for ids in opinion_set.read(split, ("ids1",))["ids1"].to_pylist()]
    assert 0.5 < plan(work, tmp_path).tokens / sum(counts) < 2  # the tiny vocabulary's tokens are whole words


def test_a_job_that_is_not_there_is_refused(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--shard-index: 2", "--num-shards 2")):
        plan(work, tmp_path, shard_index=2, num_shards=2)


def test_labels_that_are_not_the_tasks_are_refused_before_a_model_is_loaded(
    work: Path, config_only: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=naming("--teacher-labels: ", "'goood'", "'good'")):
        plan(work, tmp_path / "store", model_name_or_path=config_only, teacher_labels="goood,bad")
    BertConfig(num_labels=5).save_pretrained(tmp_path / "five")
    with pytest.raises(TeacherError, match=naming("five: ", "5 outputs", "'opinion'", "2 (bad, good)")):
        plan(work, tmp_path / "store", model_name_or_path=str(tmp_path / "five"))


def test_layers_are_counted(work: Path, teachers: Path, tmp_path: Path) -> None:
    layers = {"states": "1", "cls": "0", "attention": "1", "values": "1"}
    stored = plan(work, tmp_path, "roles", **layers, states_codec="pca-16")
    without = plan(work, tmp_path, "roles")
    assert len(stored.layer_bytes) == len(layers)
    assert stored.disk_bytes == without.disk_bytes + sum(size for _, size in stored.layer_bytes.values())
    assert stored.tokens == 2 * without.tokens  # one more pass
    tokens = without.tokens / (TRAIN_ROWS + VALIDATION_ROWS)
    assert stored.layer_bytes["states of layer 1, codec 'pca-16'"][0] == pytest.approx(tokens * 16 * 0.9, rel=0.2)


def test_a_plan_of_a_corpus_smaller_than_the_sample_counts_it(work: Path, token_store: Path) -> None:
    plan = open_dump(corpus_config(work, token_store, codec="topk-10"), "plan").plan()
    there = MaskedWordSet.open(token_store / "topk").record
    assert plan.rows["documents"] == 60
    assert plan.rows["masked sequences"] == there.num_rows
    assert plan.rows["masked positions"] == sum(scores["positions"] for scores in there.scores.values())
    assert plan.shards == len(there.shards)
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_a_plan_of_part_of_a_corpus_is_in_proportion(work: Path, token_store: Path, tmp_path: Path) -> None:
    text = (work / "corpus.txt").read_text()
    (tmp_path / "long.txt").write_text(text * 40)
    plans = [
        open_dump(corpus_config(work, tmp_path, data=path), "plan").plan()
        for path in (work / "corpus.txt", tmp_path / "long.txt")
    ]
    assert plans[1].rows["documents"] == 40 * plans[0].rows["documents"]
    assert plans[1].rows["masked positions"] == pytest.approx(40 * plans[0].rows["masked positions"], rel=0.1)
    assert plans[1].disk_bytes == pytest.approx(40 * plans[0].disk_bytes, rel=0.1)


def test_the_command_prints_it_and_writes_nothing(
    work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path
) -> None:
    flags = ["--corpus", "tiny", "--data", str(corpus_file), "--model-name-or-path", str(masked_lm)]
    more = ["--store", str(tmp_path / "store"), "--min-seq-length", "4", "--max-seq-length", "32", "--plan", "--json"]
    result = CliRunner().invoke(app, ["teacher-dump", *flags, *more])
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(result.stdout)["rows"]) == {"documents", "masked sequences", "masked positions"}
    assert not (tmp_path / "store").exists()


class Clock:
    """A clock that stands still but for what `spend` adds."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def shape(num_hidden_layers: int) -> Any:
    return SimpleNamespace(num_hidden_layers=num_hidden_layers)


@pytest.mark.parametrize(("layers", "expected"), [(1, 5.0), (2, 8.0), (12, 5.0 + 11 * 3)])
def test_further_layers_take_what_the_second_does(layers: int, expected: float, clock: Clock) -> None:
    seconds = seconds_of(shape(layers), lambda made: lambda: clock.spend(2 + 3 * made.num_hidden_layers))
    assert seconds == pytest.approx(expected)


def test_slow_first_runs_do_not_count(clock: Clock) -> None:
    calls = []

    def make(made: Any) -> Any:
        def run() -> None:
            calls.append(made.num_hidden_layers)
            clock.spend(100 if len(calls) <= 2 else 4 - made.num_hidden_layers)

        return run

    assert seconds_of(shape(12), make) == 3  # two layers were faster than one: noise
    assert set(calls) == {1, 2}


def test_the_shape_itself_stays_as_it_is(clock: Clock) -> None:
    given = shape(12)
    seconds_of(given, lambda made: lambda: clock.spend(1))
    assert given.num_hidden_layers == 12


def test_a_few_batches_stand_for_all(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    asked = []

    def spend(_: torch.nn.Module, __: Any, inputs: dict[str, torch.Tensor]) -> None:
        asked.append(tuple(inputs["attention_mask"].shape))
        assert inputs["attention_mask"].all()
        clock.spend(inputs["input_ids"].numel())

    made = AutoModelForSequenceClassification.from_config

    def hooked(given: Any) -> Any:
        model = made(given)
        model.register_forward_pre_hook(spend, with_kwargs=True)
        return model

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_config", hooked)
    seconds = classifier_seconds(config, [4] * 1000, 40, torch.device("cpu"), "fp32")
    assert seconds == 4 * 1000  # a second a token
    assert set(asked) == {(10, 4)}
    assert len(asked) < 100
