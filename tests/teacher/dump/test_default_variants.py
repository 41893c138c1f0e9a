"""Variants by a manifest's setting: when they are made, under which name, and that flags make the same ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from distill.commands.teachers import dump_teacher
from pipeline.errors import ConfigError
from pipeline.tasks.task import load_task
from teacher.dumps.examples import wanted_variants
from teacher.settings import DumpSettings, TextLogits
from tests.helpers.commands import invoke
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS
from tests.helpers.messages import naming

SMALL = ["--matrix-size", 2, "--vector-size", 2, "--hidden-size", 2, "--num-train-epochs", 1]


@pytest.fixture
def manifest(work: Path, tmp_path: Path) -> Path:
    """The single-sentence task, with two variants per row in its manifest."""
    path = tmp_path / "opinion.yaml"
    path.write_text((work / "opinion.yaml").read_text() + "augment: mask-pos\nnum_variants: {mask-pos: 2}\n")
    return path


@pytest.mark.parametrize(
    ("flags", "method", "name"),
    [
        ({}, "mask-pos", "opinion"),
        ({"splits": "train"}, "mask-pos", "opinion"),
        ({"unlabelled": "more.txt"}, "mask-pos", "opinion-unlabelled"),
        ({"name": "mine"}, "mask-pos", "mine"),
        ({"augment": "mask-pos"}, "mask-pos", "opinion-mask-pos"),
        ({"augment": "mask-each"}, "mask-each", "opinion-mask-each"),
        ({"augment": "none"}, None, "opinion"),
        ({"splits": "validation"}, None, "opinion"),
        ({"extend": "opinion", "unlabelled": "more.txt"}, None, "opinion-unlabelled"),
        ({"signal": "vectors"}, None, "opinion-vectors"),
    ],
)
def test_when_there_are_some_and_what_the_set_is_called(
    flags: dict[str, Any], method: str | None, name: str, manifest: Path
) -> None:
    config = DumpSettings.from_flags(manifest=manifest, **flags)
    wanted = getattr(config.rows.signal, "method", None)
    assert (wanted and wanted.name) == method
    assert config.place.root(config.rows.signal.set_name("opinion")).name == name


def test_of_the_shipped_tasks_sst2_has_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task, method in (("mrpc", None), ("sst2", "mask-pos")):
        config = DumpSettings.from_flags(task=task, store=tmp_path)
        logits = config.rows.signal
        assert isinstance(logits, TextLogits)
        wanted = wanted_variants(logits, load_task(task), config.place, task)
        assert (wanted and wanted.method.name) == method
    told = capsys.readouterr().err
    assert "mask-pos" in told
    assert "7 times" in told
    assert "--augment none" in told


def test_the_set_is_that_of_the_flags(manifest: Path, work: Path, teachers: Path, tmp_path: Path) -> None:
    places = ["--manifest", manifest, "--data", work / "data", "--model-name-or-path", teachers / "opinion"]
    command = ["teacher-dump", *places, "--no-token-vectors", "--store", tmp_path / "store", "--json"]
    masks = ["--pos-probability", 0]
    plan = json.loads(invoke(*command, *masks, "--plan").stdout)
    assert plan["rows"] == {"train": 3 * TRAIN_ROWS, "validation": VALIDATION_ROWS}
    by_default, by_flags = (
        json.loads(invoke(*command, *masks, *more).stdout) for more in ([], ["--augment", "mask-pos"])
    )
    assert (by_default["name"], by_flags["name"]) == ("opinion", "opinion-mask-pos")
    assert by_default["fingerprint"] == by_flags["fingerprint"]
    assert by_default["augmentation"]["tried"] == 2 * TRAIN_ROWS
    gold_alone = ["train-student", "--task", "opinion", "--store", tmp_path / "store", "--alpha", 1]
    told = invoke(*gold_alone, *SMALL, "--output-dir", tmp_path / "run").stderr
    assert "--alpha 1" in told
    where = ["--where", "variant = 0", "--output-dir", tmp_path / "without"]
    assert "--alpha 1" not in invoke(*gold_alone, *SMALL, *where).stderr
    flags: dict[str, Any] = {"data": work / "data", "model_name_or_path": str(teachers / "opinion")}
    flags |= {"token_vectors": False, "store": tmp_path / "store"}
    without = dump_teacher(manifest=manifest, name="without", augment="none", **flags)
    assert without["augmentation"] is None


@pytest.mark.parametrize("method", ["mask-pso", "mask-each"])
def test_a_method_that_is_none_to_learn_from_is_refused(method: str, manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace("augment: mask-pos", f"augment: {method}"))
    with pytest.raises(ConfigError, match=naming("'opinion'", f"'{method}'")):
        DumpSettings.from_flags(manifest=manifest)


def test_what_was_made_before_is_not_taken_for_the_default(
    manifest: Path, work: Path, teachers: Path, tmp_path: Path
) -> None:
    places = ["--manifest", manifest, "--data", work / "data", "--store", tmp_path / "store"]
    masks = ["--pos-probability", 0]
    teacher = ["--model-name-or-path", teachers / "opinion", "--no-token-vectors"]
    assert invoke("augment", *places, "--method", "mask-pos", "--num-variants", 3, *masks).exit_code == 0
    other = invoke("teacher-dump", *places, *teacher, *masks)
    assert other.exit_code == 2
    assert "num_variants: 3" in other.stderr
    assert invoke("teacher-dump", *places, *teacher, "--augment", "none").exit_code == 0
    without = invoke("teacher-dump", *places, *teacher, *masks)
    assert without.exit_code == 2
    assert "--augment none" in without.stderr
    jobs = invoke("teacher-dump", *places, *teacher, *masks, "--num-shards", 2, "--name", "a", "--variants", "b")
    assert f"`distill augment --manifest {manifest} --method mask-pos --name b`" in jobs.stderr
