"""Variants of tiny tasks, and a custom task."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.sets.record_parts import AugmentationRecord
from teacher.augment.augment import augment
from teacher.augment.methods import AugmentSettings

Changes = dict[str, Any]


def augment_settings(work: Path, store: Path, task: str, method: str, **changes: object) -> Changes:
    values: Changes = {"manifest": work / f"{task}.yaml", "data": work / "data", "store": store, "method": method}
    if method == "tinybert":
        values |= {"masked_lm": str(work / "teachers" / "mlm"), "max_seq_length": 32}
    return values | changes


def write_variants(
    work: Path, store: Path, task: str = "opinion", method: str = "tinybert", **changes: Any
) -> AugmentationRecord:
    """Augments a tiny task in this process."""
    values = augment_settings(work, store, task, method, **changes)
    record = augment(AugmentSettings.from_flags(**values), "distill augment")
    assert record is not None
    return record


def rows_of(root: Path) -> list[dict[str, Any]]:
    """The variants in a folder, in the order in which they are stored."""
    tables = [pq.read_table(path, partitioning=None) for path in sorted((root / "rows").glob("*.parquet"))]
    return list(pa.concat_tables(tables).to_pylist())


def own_task(folder: Path, rows: list[tuple[str, str]], validation: list[tuple[str, str]] | None = None) -> Changes:
    """A custom pair task, as flags."""
    lines = ["name: own", "type: classification", "columns: {sentence1: a, sentence2: b, label: label}"]
    lines += ["labels: [different, same]", "metrics: [accuracy]", "splits: {train: , validation: }"]
    (folder / "own.yaml").write_text("\n".join(lines))
    (folder / "data").mkdir()
    for split, pairs in (("train", rows), ("validation", validation or rows)):
        values = [{"a": a, "b": b, "label": n % 2} for n, (a, b) in enumerate(pairs)]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    return {"manifest": folder / "own.yaml", "data": folder / "data"}
