from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.training.run_record import read_run_record


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
        read_run_record(tmp_path / "run.json")


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"{tmp_path.name}: not a run: it has no run\\.json"):
        read_run_record(tmp_path / "run.json")
