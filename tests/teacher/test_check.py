"""Does the teacher still predict what a set contains? Exit codes, and which row is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import read_set_record
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.write import finish_set
from pipeline.tasks.task import load_task
from teacher.check import Check, check
from teacher.dumps import dump
from teacher.settings import CheckSettings
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.rewritten_shards import rewrite, with_column


def checked(root: Path, work: Path, **flags: Any) -> Check:
    return check(CheckSettings(set=str(root), manifest=work / f"{root.name.partition('-')[0]}.yaml", **flags))


def run(root: Path, work: Path, *flags: object) -> Any:
    command = ["check", root, "--manifest", work / "opinion.yaml", *flags]
    return CliRunner().invoke(app, [str(part) for part in command])


@pytest.fixture
def own(opinion_set: ExampleSet, tmp_path: Path) -> ExampleSet:
    """The single-sentence set, free to be changed."""
    return ExampleSet.open(Path(shutil.copytree(opinion_set.root, tmp_path / "store" / "opinion")))


@pytest.mark.parametrize("name", ["opinion_set", "roles_set", "augmented_set"])
def test_a_sound_set_passes(name: str, request: pytest.FixtureRequest, work: Path) -> None:
    logit_set: ExampleSet = request.getfixturevalue(name)
    found = checked(logit_set.root, work, sample=1000)
    assert found.rows == logit_set.record.num_rows
    assert found.passed
    assert found.same_weights
    assert found.stored.largest < 1e-5
    assert found.tolerance == 1e-3


def test_a_sample_is_a_matter_of_the_seed(opinion_set: ExampleSet, work: Path) -> None:
    assert checked(opinion_set.root, work, sample=7).rows == 7
    rows = {checked(opinion_set.root, work, sample=1, seed=seed).worst_row for seed in (1, 1, 2, 3)}
    assert 1 < len(rows) <= 3


def test_changed_logits_fail_and_the_row_is_named(own: ExampleSet, work: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        logits = logits_of(table, 2)
        logits[5] += (0.0, 0.25)  # source row 24 + 5
        return with_column(table, "logits", pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), 2))

    finish_set(own.root, rewrite(own, change), own.record.scores)  # verified: nothing but the teacher can tell
    found = checked(own.root, work, sample=1000)
    assert not found.passed
    assert found.same_weights
    assert found.worst_row == ("train", 29, 0)
    assert found.stored.largest == pytest.approx(0.25, abs=1e-5)
    assert found.stored.mean == pytest.approx(0.25 / (2 * (TRAIN_ROWS + VALIDATION_ROWS)), abs=1e-5)
    assert checked(own.root, work, sample=1000, tolerance=0.26).passed
    result = run(own.root, work, "--sample", 1000)
    assert result.exit_code == 1
    assert "train:29:0" in result.stderr
    values = json.loads(run(own.root, work, "--sample", 1000, "--json").stdout)
    assert (values["passed"], values["worst_row"]) == (False, ["train", 29, 0])


def test_a_passed_check_exits_with_0(opinion_set: ExampleSet, work: Path) -> None:
    result = run(opinion_set.root, work)
    assert result.exit_code == 0
    assert json.loads(run(opinion_set.root, work, "--json").stdout)["passed"]


def test_other_weights_fail_even_if_the_logits_are_close(opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "teachers" / "opinion", tmp_path / "teacher")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher")
    with torch.no_grad():
        model.classifier.bias[0] += 1e-6
    model.save_pretrained(tmp_path / "teacher")
    found = checked(opinion_set.root, work, model_name_or_path=str(tmp_path / "teacher"))
    assert found.stored.largest < found.tolerance
    assert (found.same_weights, found.passed) == (False, False)
    result = run(opinion_set.root, work, "--model-name-or-path", tmp_path / "teacher")
    assert result.exit_code == 1
    assert "warning: " in result.stderr


def test_a_teacher_that_is_gone_may_lie_elsewhere(own: ExampleSet, work: Path, tmp_path: Path) -> None:
    record = read_set_record(own.root)
    gone = record.teacher.model_copy(update={"name": str(tmp_path / "gone")})
    finish_set(own.root, record.model_copy(update={"teacher": gone}), record.scores)
    with pytest.raises(DataError, match=naming("gone: ", "--model-name-or-path")):
        checked(own.root, work)
    assert run(own.root, work).exit_code == 2
    assert checked(own.root, work, model_name_or_path=str(work / "teachers" / "opinion")).passed


def test_a_teacher_may_write_the_labels_in_its_own_way_and_order(work: Path, teachers: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(teachers / "opinion", tmp_path / "teacher")
    names = json.loads((folder / "config.json").read_text())
    own = {
        number: str(name).upper() for number, name in enumerate(load_task(manifest=work / "opinion.yaml").labels[::-1])
    }
    names |= {"id2label": own, "label2id": {name: number for number, name in own.items()}}
    (folder / "config.json").write_text(json.dumps(names))
    flags = {"model_name_or_path": str(folder), "teacher_labels": None}
    record = dump(dump_config(work, "opinion", tmp_path / "store", **flags), "distill teacher-dump")
    assert record is not None
    assert record.teacher.labels == tuple(own.values())
    assert checked(tmp_path / "store" / "opinion", work).passed


def test_a_task_of_ones_own_needs_its_manifest(own: ExampleSet) -> None:
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "'opinion'", "--manifest")):
        check(CheckSettings(set=str(own.root)))


def test_what_cannot_be_checked_is_refused(own: ExampleSet, token_store: Path, work: Path) -> None:
    with pytest.raises(ConfigError, match=naming("tokens/topk: ")):
        check(CheckSettings(set=str(token_store / "topk")))
    with pytest.raises(ConfigError, match=naming("--manifest: ", "'roles'", "'opinion'")):
        check(CheckSettings(set=str(own.root), manifest=work / "roles.yaml"))
    shutil.copyfile(*(own.root / shard.path for shard in own.record.shards[2:4]))
    with pytest.raises(IntegrityError, match=naming("examples/train-00001-of-00004.parquet: ")):
        checked(own.root, work)
