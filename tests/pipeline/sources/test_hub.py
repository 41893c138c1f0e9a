from pathlib import Path

import datasets
import pytest
import yaml

from pipeline.errors import DataError
from pipeline.sources import load_source
from pipeline.tasks.task import Task, load_task
from tests.helpers.messages import naming

README = """---
configs:
- config_name: cola
  data_files:
  - {split: train, path: cola/train-*}
  - {split: validation, path: cola/validation-*}
- config_name: stsb
  data_files:
  - {split: train, path: stsb/train-*}
---
"""


@pytest.fixture
def glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like nyu-mll/glue."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "glue"
    label = datasets.ClassLabel(names=["unacceptable", "acceptable"])
    text = datasets.Value("string")
    for split, labels in (("train", [1, 0, -1]), ("validation", [0, 1, 1])):
        features = datasets.Features({"sentence": text, "label": label, "idx": datasets.Value("int32")})
        rows = {"sentence": [f"{split} {k} “é”" for k in range(3)], "label": labels, "idx": [0, 1, 2]}
        (root / "cola").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features).to_parquet(root / "cola" / f"{split}-00000-of-00001.parquet")
    (root / "stsb").mkdir()
    scores = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [5.0, 1.25]}
    datasets.Dataset.from_dict(scores).to_parquet(root / "stsb" / "train-00000-of-00001.parquet")
    (root / "README.md").write_text(README)
    return root


def hub_task(folder: Path, shipped: str, glue: Path, **changes: object) -> Task:
    """A user's manifest: the shipped one, read from a folder instead of the hub."""
    values = load_task(shipped).model_dump(mode="json", exclude_none=True)
    values |= {"hub": {"id": str(glue), "config": shipped}, **changes}
    (folder / "user.yaml").write_text(yaml.safe_dump(values))
    return load_task(manifest=folder / "user.yaml")


def test_rows_in_the_data_sets_order(tmp_path: Path, glue: Path) -> None:
    source = load_source(hub_task(tmp_path, "cola", glue))
    assert source.description == f"{glue}/cola"
    assert list(source.splits) == ["train", "validation"]
    train = source.splits["train"]
    assert train.column("sentence1").to_pylist() == ["train 0 “é”", "train 1 “é”", "train 2 “é”"]
    assert train.column("label").to_pylist() == [1, 0, None]  # -1 means no gold
    assert source.splits["validation"].column("label").to_pylist() == [0, 1, 1]


def test_pairs_with_scores(tmp_path: Path, glue: Path) -> None:
    rows = load_source(hub_task(tmp_path, "stsb", glue), None, ("train",)).splits["train"]
    assert rows.column("sentence2").to_pylist() == ["c", "d"]
    assert rows.column("score").to_pylist() == [5.0, 1.25]


def test_another_order_of_labels_is_followed_and_other_names_are_refused(tmp_path: Path, glue: Path) -> None:
    task = hub_task(tmp_path, "cola", glue, labels=["acceptable", "unacceptable"])
    assert load_source(task).splits["train"].column("label").to_pylist() == [0, 1, None]
    task = hub_task(tmp_path, "cola", glue, labels=["no", "yes"])
    with pytest.raises(DataError, match=naming("glue/cola:train: ", "unacceptable", "0=no, 1=yes")):
        load_source(task)


def test_local_data_goes_before_the_hub(tmp_path: Path, glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path / "data"))
    task = hub_task(tmp_path, "cola", glue)
    assert load_source(task).description == f"{glue}/cola"  # nothing of the task is there
    (tmp_path / "data" / "cola").mkdir()
    (tmp_path / "data" / "cola" / "train.tsv").write_text("sentence\tlabel\nlocal\t1\n")
    source = load_source(task)
    assert source.splits["train"].column("sentence1").to_pylist() == ["local"]


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        ({"config": "colla"}, naming("glue/colla, split 'train': ", "--data")),
        ({"id": "nobody/nothing", "config": None}, naming("nobody/nothing, split 'train': ", "--data")),
    ],
)
def test_hub_that_cannot_be_read(tmp_path: Path, glue: Path, hub: dict[str, str | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_source(hub_task(tmp_path, "cola", glue, hub={"id": str(glue), **hub}))
