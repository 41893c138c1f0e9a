from pathlib import Path

import pytest

from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.training.run_record import finish_run, kind_of_folder, read_run_record, start_run

SETTINGS = {"seed": 1, "learning_rate": 5e-4, "where": None, "sizes": [20, 400], "name": "é"}


def test_life_of_a_run(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "run.json", tmp_path / "checkpoint"
    assert start_run(path, SETTINGS, "distill train-student", checkpoint, {"place": "a"}) is None
    begun = {"state": "running", "command": "distill train-student", "settings": SETTINGS}
    assert read_run_record(path) == begun | {"place": "a"}
    checkpoint.touch()
    assert start_run(path, SETTINGS, "the same again", checkpoint) is None  # interrupted: it goes on
    finished = finish_run(path, {"accuracy": 0.9})
    assert finished["state"] == "finished"
    assert start_run(path, SETTINGS, "once more", checkpoint) == finished == read_run_record(path)
    assert finished["command"] == "distill train-student"
    moved = start_run(path, SETTINGS, "once more", checkpoint, {"place": "b"})
    assert moved == read_run_record(path) == finished | {"place": "b"}  # places follow the last try


def test_a_run_without_a_checkpoint_has_nothing_to_lose(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    start_run(path, SETTINGS, "mistyped", tmp_path / "checkpoint")
    assert start_run(path, SETTINGS | {"seed": 2}, "mended", tmp_path / "checkpoint") is None
    assert read_run_record(path)["settings"]["seed"] == 2


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    path = tmp_path / "run.json"
    start_run(path, SETTINGS, "distill", tmp_path / "checkpoint")
    (tmp_path / "checkpoint").touch()
    if finished:
        finish_run(path, {})
    before = path.read_text()
    other = {key: value for key, value in SETTINGS.items() if key != "name"} | {
        "seed": 2,
        "where": "label = 1",
        "new": 3,
    }
    with pytest.raises(FingerprintMismatchError) as caught:
        start_run(path, other, "distill", tmp_path / "checkpoint")
    lines = str(caught.value).splitlines()
    assert lines[1:5] == [
        "  - name: 'é' there, None now",
        "  - new: None there, 3 now",
        "  - seed: 1 there, 2 now",
        "  - where: None there, 'label = 1' now",
    ]
    assert "--output-dir" in lines[5]
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not the record of a run"),
        ('{"state": "running"}', "not the record of a run"),
        (b"\xff", "cannot be read"),
    ],
)
def test_damaged_record(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IntegrityError, match=message):
        start_run(tmp_path / "run.json", SETTINGS, "distill", tmp_path / "checkpoint")


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"{tmp_path.name}: not a run: it has no run\\.json"):
        read_run_record(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("files", "kind"), [([], None), (["run.json"], "run"), (["sweep.json"], "sweep"), (["distill.json"], None)]
)
def test_a_folder_is_what_its_record_says(tmp_path: Path, files: list[str], kind: str | None) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    assert kind_of_folder(tmp_path) == kind
