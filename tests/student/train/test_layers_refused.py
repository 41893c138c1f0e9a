"""Combinations of layers, tasks and existing folders that do not work are refused before any work."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from student.losses.ted_filters import train_filters
from student.pretrain_settings import FiltersSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config


def test_filters_need_a_set_with_states(store: Path, tmp_path: Path) -> None:
    flags = FiltersSettings.from_flags(set=str(store / "opinion"), output_dir=tmp_path / "filters")
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "--keep cls", "--manifest opinion.yaml")):
        train_filters(flags, "distill filters")


def test_several_tasks_do_not_write_over_a_run_of_one(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "opinion"), "")
    before = read_record(tmp_path / "opinion" / "run.json")
    tasks = f"{store / 'opinion'},{store / 'roles'}"
    config = tiny_config(store / "opinion", tmp_path, set=(), tasks=tasks)
    with pytest.raises(FingerprintMismatchError, match=naming("tasks: ", "opinion, roles", "--output-dir")):
        train(config, "")
    assert read_record(tmp_path / "opinion" / "run.json") == before


@pytest.mark.parametrize("pairing", ["joint", None])
def test_sentences_and_pairs_share_an_encoder(pairing: str | None, store: Path, tmp_path: Path) -> None:
    bert = {"embedding": "bert", "init": "noise", "matrix_size": None, "vector_size": 24, "hidden_size": None}
    flags = {"pairing": "joint"} if pairing else bert | {"num_attention_heads": 2, "num_hidden_layers": 1}
    tasks = f"{store / 'opinion'},{store / 'roles'}"
    config = tiny_config(store / "opinion", tmp_path, set=(), tasks=tasks, num_train_epochs=1, **flags)
    train(config, "")
    assert read_record(tmp_path / "roles" / "run.json")["state"] == "finished"


def test_a_folder_without_filters_says_so(store: Path, tmp_path: Path) -> None:
    config = tiny_config(store / "opinion", tmp_path / "run", layer_loss="hid-seq", filters=tmp_path / "none")
    with pytest.raises((ConfigError, IntegrityError), match=r"none: .*filters\.json"):
        train(config, "")


def test_a_score_has_no_rows_of_other_labels(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--layer-loss hid-cls-contrast: "):
        train(tiny_config(ratings["score"].root, tmp_path / "run", layer_loss="hid-cls-contrast"), "")
