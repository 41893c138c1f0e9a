"""The checks of a GPU themselves, tried on a CPU."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.gpu.__main__ import main
from tests.gpu.checks import Measured, distance
from tests.helpers.tried_checks import tried


@pytest.mark.slow
def test_a_cpu_agrees_with_itself(tmp_path: Path) -> None:
    found = tried_on_a_cpu(tmp_path, "pairs")
    assert [row["result"] for row in found] == ["passed", "passed"]
    assert all(row["value"] <= row["bound"] for row in found)


@pytest.mark.slow
def test_a_cpu_trains_the_same_student_twice(tmp_path: Path) -> None:
    found = tried_on_a_cpu(tmp_path, "the seed determines")
    assert [(row["result"], row["value"]) for row in found] == [("passed", 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "count"), [("BERT-base", 5), ("large product", 1), ("masked words, bf16,", 4), ("to a file", 1)]
)
def test_speeds_are_measured(tmp_path: Path, part: str, count: int) -> None:
    found = tried_on_a_cpu(tmp_path, part)
    assert [row["result"] for row in found] == ["passed"] * count
    assert all(row["value"] > 0 for row in found)


def tried_on_a_cpu(folder: Path, part: str) -> list[dict[str, Any]]:
    """The results of the short form of some checks."""
    assert main(["--device", "cpu", "--short", "--only", part, "--json", str(folder / "found.json")]) == 0
    found: list[dict[str, Any]] = json.loads((folder / "found.json").read_text())["checks"]
    return found


def test_numbers_beyond_the_bound_and_errors_fail() -> None:
    assert tried("x", lambda: Measured(0.2, 0.1, "of the spread"))["result"] == "failed"
    assert tried("x", lambda: Measured(0.1, 0.1, "of the spread"))["result"] == "passed"
    assert tried("x", lambda: Measured(7, None, "rows/s"))["result"] == "passed"
    failed = tried("x", lambda: Measured(1 / 0, None, ""))
    assert (failed["result"], failed["value"], "ZeroDivisionError" in failed["problem"]) == ("failed", None, True)


def test_the_distance_is_a_share_of_the_spread(tmp_path: Path) -> None:
    values = {"a": [[0.0, 4.0], [1.0, 2.0]], "b": [[0.0, 4.0], [1.0, 2.5]], "c": [[0.0, 4.0]]}
    for store, rows in values.items():
        (tmp_path / store / "pairs").mkdir(parents=True)
        table = pa.table({"logits": pa.array(rows, pa.list_(pa.float32(), 2))})
        pq.write_table(table, tmp_path / store / "pairs/train.parquet")
    assert distance(tmp_path / "a", tmp_path / "a", "pairs") == 0
    assert distance(tmp_path / "a", tmp_path / "b", "pairs") == 0.5 / 4
    with pytest.raises(RuntimeError, match="logits"):
        distance(tmp_path / "a", tmp_path / "c", "pairs")
