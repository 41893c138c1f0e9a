from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.kinds.examples import ExampleSet
from teacher.dump.estimate import Plan
from teacher.dumps import open_dump
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
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
