"""The default number of epochs."""

from pathlib import Path

import pytest

from pipeline.record_file import Record
from student import settings as config_module
from student.settings import TrainSettings
from student.train import train
from tests.helpers.dumps import TRAIN_ROWS
from tests.helpers.students import tiny_config

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
