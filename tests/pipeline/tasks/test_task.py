from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.tasks.task import load_task, task_names
from tests.helpers.messages import naming

SPLITS = {  # GLUE's published sizes
    "cola": {"train": 8551, "validation": 1043},
    "mnli": {"train": 392702, "validation_matched": 9815, "validation_mismatched": 9832},
    "mrpc": {"train": 3668, "validation": 408},
    "qnli": {"train": 104743, "validation": 5463},
    "qqp": {"train": 363846, "validation": 40430},
    "rte": {"train": 2490, "validation": 277},
    "sst2": {"train": 67349, "validation": 872},
    "stsb": {"train": 5749, "validation": 1500},
    "wnli": {"train": 635, "validation": 71},
}
GOOD = """
name: mine
type: classification
columns: {sentence1: text, label: stars}
labels: [bad, good]
metrics: [accuracy]
splits: {train: null, validation: 10}
"""


def user_task(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nine_tasks_are_shipped() -> None:
    assert task_names() == sorted(SPLITS)


@pytest.mark.parametrize("name", SPLITS)
def test_shipped_manifest(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    assert task.splits == SPLITS[name]
    assert task.is_pair == (name not in {"cola", "sst2"})
    assert task.type == ("regression" if name == "stsb" else "classification")
    assert task.teacher is not None
    assert sorted(task.teacher.labels) == sorted(task.labels)
    assert task.hub is not None
    assert (task.hub.id, task.hub.config) == ("nyu-mll/glue", name)
    assert len(task.hub.revision or "") == 40  # pinned to a commit


def test_mnli_and_its_teacher_order_their_labels_differently() -> None:
    task = load_task("mnli")
    assert task.labels == ("entailment", "neutral", "contradiction")
    assert task.teacher is not None
    assert task.teacher.labels == ("contradiction", "entailment", "neutral")
    assert task.dev_splits == ("validation_matched", "validation_mismatched")


def test_stsb_has_21_bins_from_1_to_5() -> None:
    bins = load_task("stsb").bins
    assert bins is not None
    assert bins.values == (
        1,
        1.2,
        1.4,
        1.6,
        1.8,
        2,
        2.2,
        2.4,
        2.6,
        2.8,
        3,
        3.2,
        3.4,
        3.6,
        3.8,
        4,
        4.2,
        4.4,
        4.6,
        4.8,
        5,
    )


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=naming("--task: ", "'mnil'", "'mnli'", "cola, ", "wnli")):
        load_task("mnil")


@pytest.mark.parametrize("name", ["tickets.yaml", "tasks/tickets.yml"])
def test_a_file_in_place_of_a_name_is_told_its_flag(name: str) -> None:
    with pytest.raises(ConfigError, match=naming(name, "--manifest")):
        load_task(name)


def test_user_manifest(tmp_path: Path) -> None:
    task = load_task(manifest=user_task(tmp_path, GOOD))
    assert (task.name, task.is_pair, task.labels) == ("mine", False, ("bad", "good"))
    assert task.columns.sentence1 == ("text",)
    assert task.splits == {"train": None, "validation": 10}


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("columns", "colums").replace("accuracy", "acuracy").replace("name: mine", "name: My Task")
    with pytest.raises(ConfigError) as caught:
        load_task(manifest=user_task(tmp_path, text))
    message = str(caught.value)
    assert "mine.yaml: " in message
    assert "'colums'. Did you mean 'columns'?" in message
    assert "'columns'" in message
    assert "metrics.0" in message
    assert "metrics: " not in message  # which is empty only for what is wrong in it
    assert "'acuracy'" in message
    assert "'My Task'" in message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[bad, good]", "[bad]", "labels"),
        ("[bad, good]", "[bad, fair, good]\nbins: {low: 0, high: 1, width: 0}", r"bins\.width"),
        ("[accuracy]", "[pearson]", naming(["pearson"])),
        ("[bad, good]\nmetrics: [accuracy]", "[bad, fair, good]\nmetrics: [f1]", "f1"),
        ("classification", "regression", "score_range"),
        ("classification", "ranking", naming("type: ", "'ranking'")),
        ("{train: null, validation: 10}", "{}", "splits: "),
        ("[bad, good]", "[no, yes]", naming("labels.0: ", False)),
        (GOOD, "- a\n- b", r"mine\.yaml: "),
        ("{train: null, validation: 10}", "[train]", naming("splits: ", ["train"])),
        ("validation: 10", "validation: dev.csv", naming("splits.validation: ", "'dev.csv'")),
        (GOOD, "a: [", "YAML"),
        ("[bad, good]", "[good, good]", "good"),
        ("validation: 10", "validation: -5", r"splits\.validation: "),
        ("validation: 10", "validation: 9999999999999", r"splits\.validation: "),
        ("sentence1: text", "sentence1: []", r"columns\.sentence1: "),
        ("validation: 10", "Dev-1: 10", "Dev-1"),  # no shard could bear that name
    ],
)
def test_wrong_manifest_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task(manifest=user_task(tmp_path, GOOD.replace(before, after)))


def test_regression_manifest(tmp_path: Path) -> None:
    text = GOOD.replace("classification", "regression").replace("labels: [bad, good]", "score_range: [0, 5]")
    task = load_task(manifest=user_task(tmp_path, text.replace("accuracy", "pearson, spearmanr")))
    assert task.score_range == (0, 5)
    assert task.labels == ()


def test_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--manifest", "gone.yaml: ")):
        load_task(manifest=tmp_path / "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match=naming("--manifest", "latin.yaml: ", "utf-8")):
        load_task(manifest=tmp_path / "latin.yaml")


def test_task_name_must_be_the_manifests(tmp_path: Path) -> None:
    path = user_task(tmp_path, GOOD)
    assert load_task("mine", path).name == "mine"
    with pytest.raises(ConfigError, match=naming("--task 'yours'", "--manifest", "mine.yaml", "'mine'")):
        load_task("yours", path)
    with pytest.raises(ConfigError, match=naming("--task NAME", "--manifest FILE")):
        load_task()
