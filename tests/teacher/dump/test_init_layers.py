"""Weights that a set carries: the teacher's own, found again when they are lost, and what a student starts from."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.file_names import WEIGHTS_FILE
from pipeline.files import TEMPORARY_SUFFIX
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, changed, read_set_record, write_set_record
from pipeline.sets.set_settings import PullSettings, PushSettings
from pipeline.sets.signals.side_files import INIT_FILE
from pipeline.sets.verify import verify_shards
from pipeline.sharing.pull import pull
from pipeline.sharing.push import push
from student.initial_weights.bert import BertStart, bert_start, copy_layers
from student.model.student import Student
from student.training_data import build_student_config, task_facts
from teacher.dump.additions import check_same_init, init_bytes
from teacher.dumps import dump, open_dump
from tests.helpers.commands import invoke
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config


def write(work: Path, store: Path, **changes: Any) -> SetRecord:
    record = dump(dump_config(work, "roles", store, **changes), "distill teacher-dump")
    assert record is not None
    return record


@pytest.fixture(scope="module")
def init_set(work: Path, roles_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The pair task with the weights of its teacher's only layer, from a teacher that has gone since; read only."""
    store = tmp_path_factory.mktemp("init")
    root = shutil.copytree(roles_set.root, store / "roles")
    record = write(work, store, init_layers="all")
    teacher = record.teacher.model_copy(update={"name": "gone"})
    write_set_record(root, changed(record, teacher=teacher))
    return ExampleSet.open(root)


def started(logit_set: ExampleSet, **changes: object) -> tuple[BertStart, dict[str, torch.Tensor]]:
    """What a bert of a set starts from, and its encoder's weights then."""
    sizes = {"matrix_size": None, "vector_size": None, "hidden_size": None}
    flags = tiny_config(logit_set.root, Path("run"), embedding="bert", **sizes | changes)
    start = bert_start(flags.encoder, flags.start, logit_set)
    assert start is not None
    encoder = Student(build_student_config(flags, logit_set, task_facts(logit_set))[0]).encoder
    copy_layers(start, encoder)
    return start, encoder.state_dict()


def test_a_student_starts_from_the_set_as_from_the_teacher(roles_set: ExampleSet, init_set: ExampleSet) -> None:
    from_folder, expected = started(roles_set)
    from_set, found = started(init_set)
    assert (from_folder.folder, from_set.folder) == (Path(roles_set.record.teacher.name), init_set.root)
    assert from_set.inherited == from_folder.inherited
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match=naming("--init-layers 2: ", "1 layers")):
        started(init_set, init_layers="2")


def test_the_record_tells_what_the_file_holds(work: Path, init_set: ExampleSet) -> None:
    init = init_set.record.signals.init
    assert init is not None
    numbers = sum(tensor.nbytes for tensor in load_file(init_set.root / INIT_FILE).values())
    assert numbers == init.shape.num_bytes(1) <= init.bytes < numbers + 10_000
    plan = open_dump(dump_config(work, "roles", init_set.root.parent, init_layers="1"), "plan").plan()
    assert plan.init_bytes == numbers
    assert plan.disk_bytes > numbers
    assert "layers 1 of 1 and pooler" in card_text(init_set.record)
    with pytest.raises(ValueError, match="bytes"):
        type(init)(**init.model_dump() | {"bytes": numbers - 1})
    with pytest.raises(ValueError, match="layers"):
        type(init)(**init.model_dump() | {"layers": (1, 2)})


def test_weights_that_nobody_recorded_are_not_started_from(init_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(init_set.root, tmp_path / "roles")
    other = {name: tensor + 1 for name, tensor in load_file(root / INIT_FILE).items()}
    save_file(other, root / WEIGHTS_FILE)
    (expected, recorded), (found, weights) = started(init_set), started(ExampleSet.open(root))
    assert found.sha256 == expected.sha256
    assert all(torch.equal(weights[name], recorded[name]) for name in weights)


def test_weights_of_other_layers_stay(init_set: ExampleSet) -> None:
    check_same_init(init_set.root, (1,))
    check_same_init(init_set.root, ())
    with pytest.raises(FingerprintMismatchError, match=naming("layers 1", "1,2", "--keep init=1", "init.safetensors")):
        check_same_init(init_set.root, (1, 2))
    check_same_init(init_set.root.parent, (2,))


def test_what_another_job_is_writing_stays(work: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(roles_set.root, tmp_path / "roles")
    theirs = root / f".{INIT_FILE}.0123456789ab{TEMPORARY_SUFFIX}"
    theirs.touch()
    record = write(work, tmp_path, init_layers="1", shard_index=1, num_shards=2)
    assert record.signals.init is not None
    assert theirs.exists()
    (root / INIT_FILE).unlink()
    assert write(work, tmp_path, init_layers="1") == record
    assert not theirs.exists()


def test_damaged_weights_are_found_and_come_back(work: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(roles_set.root, tmp_path / "roles")
    record = write(work, tmp_path, init_layers="1")
    assert record.signals.row_signals() == roles_set.record.signals.row_signals()
    content = bytearray((root / INIT_FILE).read_bytes())
    content[-1] ^= 1
    (root / INIT_FILE).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"init\.safetensors"):
        verify_shards(root, record)
    (root / record.shards[0].path).unlink()  # with rows lost, too
    assert write(work, tmp_path) == record  # without being named
    verify_shards(root, record)


def test_they_travel_but_not_without_text(init_set: ExampleSet, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    assert INIT_FILE in push(PushSettings(set="roles", store=init_set.root.parent, url=url)).sent
    pulled = pull(PullSettings(store=tmp_path / "store", url=url))
    assert started(ExampleSet.open(pulled.root))[0].sha256 == started(init_set)[0].sha256
    push(PushSettings(set="roles", store=init_set.root.parent, url=f"{url}-blind", without_text=True))
    assert not (tmp_path / "there-blind" / INIT_FILE).exists()
    assert read_set_record(tmp_path / "there-blind").signals.init is None


def test_recode_and_a_new_version_take_them_over(work: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    shutil.copytree(roles_set.root, tmp_path / "roles")
    first = write(work, tmp_path, init_layers="1", cls="1")
    recoded = invoke("recode", "roles", "--store", tmp_path, "--codec", "cls=int8", "--name", "small")
    assert recoded.exit_code == 0, recoded.stderr
    second = write(work, tmp_path, name="second", extend="roles")
    for record in (ExampleSet.open(tmp_path / "small").record, second):
        assert record.signals.init == first.signals.init
        assert (tmp_path / record.name / INIT_FILE).stat().st_ino == (tmp_path / "roles" / INIT_FILE).stat().st_ino
        verify_shards(tmp_path / record.name, record)
    assert "layers 1 of 1 and pooler" in (tmp_path / "second" / "README.md").read_text()
    assert write(work, tmp_path, name="second", extend="roles") == second
    (tmp_path / "roles" / INIT_FILE).unlink()  # then they are the teacher's own, which are the same
    assert write(work, tmp_path, name="third", extend="roles").signals.init == first.signals.init
    verify_shards(tmp_path / "third", ExampleSet.open(tmp_path / "third").record)


def test_other_families_are_refused_before_the_work() -> None:
    shape = SimpleNamespace(model_type="electra", hidden_act="gelu", num_hidden_layers=2)
    with pytest.raises(TeacherError, match=naming("--keep init", "'electra'")):
        init_bytes((1,), "x", shape)
    without = SimpleNamespace(model_type="modernbert", num_hidden_layers=2)
    with pytest.raises(TeacherError, match=naming("--keep init", "'modernbert'")):
        init_bytes((1,), "x", without)
