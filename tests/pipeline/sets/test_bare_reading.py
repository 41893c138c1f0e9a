"""A set that was pulled is read by people who have never heard of this project."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import read_set_record
from tests.helpers.formats import FOLDER
from tests.helpers.places import fetch, send

SCRIPT = """
import json, sys
sys.modules.update(pipeline=None, teacher=None, student=None)  # not even by accident
import datasets, duckdb
found = {}
for root in sys.argv[1:]:
    rows = datasets.load_dataset(root, "examples", split="train")
    query = f"select source_row, label, logits from '{root}/examples/train-*.parquet' order by source_row"
    loaded = sorted(([row["source_row"], row["label"], row["logits"]] for row in rows), key=lambda row: row[0])
    found[root] = [rows.column_names, loaded, duckdb.sql(query).fetchall()]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_datasets_and_duckdb_read_a_pulled_set(roles_set: ExampleSet, tmp_path: Path) -> None:
    for name, without_text in (("whole", False), ("blind", True)):
        send(roles_set.root, str(tmp_path / "there" / name), without_text=without_text)
        fetch(str(tmp_path / "there" / name), tmp_path / "store", name=name)
    extended = Path(shutil.copytree(FOLDER / "extended", tmp_path / "extended"))
    (extended / "README.md").write_text(card_text(read_set_record(extended)))
    roots = [tmp_path / "store" / "whole", tmp_path / "store" / "blind", extended]
    process = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, *map(str, roots)],
        env=os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    ours = roles_set.read("train", ("source_row", "label", "logits")).to_pylist()
    for root in roots[:2]:
        columns, loaded, queried = found[str(root)]
        assert loaded == queried == [list(row.values()) for row in ours]
        assert ("sentence1" in columns) == (root.name == "whole")
    _, loaded, queried = found[str(extended)]
    assert loaded == queried
    assert [row[0] for row in loaded] == list(range(7))  # of files of two versions
