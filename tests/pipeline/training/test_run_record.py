from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.record_file import read_work_record
from pipeline.training.best_epoch import best_of
from pipeline.training.run_record import Entry, kind_of_folder
from tests.helpers.messages import naming


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"run\.json: "),
        ("[]", r"run.json: .*list"),
        ('{"state": "running"}', r"run\.json: "),
        (b"\xff", r"run\.json: "),
    ],
)
def test_damaged_record(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IntegrityError, match=message):
        read_work_record(tmp_path / "run.json")


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path.name}: ", "run.json")):
        read_work_record(tmp_path / "run.json")
    with pytest.raises(IntegrityError, match="mistyped: "):
        read_work_record(tmp_path / "mistyped" / "run.json")


@pytest.mark.parametrize(
    ("files", "kind"), [([], None), (["run.json"], "run"), (["sweep.json"], "sweep"), (["distill.json"], None)]
)
def test_a_folder_is_what_its_record_says(tmp_path: Path, files: list[str], kind: str | None) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    assert kind_of_folder(tmp_path) == kind


def test_the_first_dev_split_with_gold_decides_which_is_best() -> None:
    def entry(epoch: int, **metrics: dict[str, float]) -> Entry:
        return {"epoch": epoch, "loss": 1.0, "metrics": metrics}

    scored = [entry(n, test={}, validation={"f1": f1, "accuracy": 1 - f1}) for n, f1 in ((1, 0.5), (2, 0.7), (3, 0.6))]
    assert best_of(scored)["epoch"] == 2
    assert best_of([entry(n, test={}) for n in (1, 2, 3)])["epoch"] == 3
