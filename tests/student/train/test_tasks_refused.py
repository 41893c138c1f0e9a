"""Students of several tasks with one encoder: what does not fit together, on the command line or in a folder."""

import shutil
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import read_record
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from student.model.student import Student
from student.model.weights import ENCODER_FILE, save_sharing
from student.train import train
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.dumps import dump_config
from tests.helpers.joint_runs import same, tasks_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config


def test_sets_of_other_tokenizers_or_lengths_are_refused(work: Path, store: Path, tmp_path: Path) -> None:
    create_tiny_bert(tmp_path / "bert", [*(work / "sentences.txt").read_text().splitlines(), "wholly new words"], 32, 1)
    task = load_task(manifest=work / "roles.yaml")
    teacher = new_classifier(task, make_target(task), str(tmp_path / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, tmp_path / "teacher")
    changes = {"model_name_or_path": str(tmp_path / "teacher"), "name": "other", "max_seq_length": 30}
    dump(dump_config(work, "roles", tmp_path / "store", **changes), "")
    with pytest.raises(ConfigError) as caught:
        train(tasks_config([store / "opinion", tmp_path / "store" / "other"], tmp_path / "run"), "")
    text = str(caught.value)
    assert "tokenizer" in text
    assert "opinion has" in text
    assert "other has" in text
    assert "--max-seq-length" in text
    assert "opinion has 32, other has 30" in text
    assert not (tmp_path / "run").exists()


def test_what_is_for_one_task_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        tasks_config([store / "opinion"], tmp_path / "run", set="opinion", query="select 1", mix="vote")
    assert all(flag in str(caught.value) for flag in ("--set or --tasks", "--query: ", "--mix: "))
    with pytest.raises(ConfigError, match=naming("--tasks: ", "opinion")):
        train(tasks_config([store / "opinion", store / "opinion"], tmp_path / "run"), "")
    with pytest.raises(DataError, match=naming("'role'", "'roles'")):
        train(tasks_config([Path("opinion"), Path("role")], tmp_path / "run", store=store), "")
    assert not list(tmp_path.iterdir())


def test_other_settings_or_tasks_in_the_same_folder_are_refused(
    together: Path, task_sets: list[Path], store: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(together, tmp_path / "run")
    with pytest.raises(FingerprintMismatchError, match=naming("tasks: opinion, roles, score there")):
        train(tasks_config(task_sets[:2], run, num_train_epochs=3), "")
    alone = tiny_config(store / "roles", run / "roles", num_train_epochs=3, per_device_train_batch_size=16)
    with pytest.raises(FingerprintMismatchError, match="tasks: "):  # not taken for a student that learned alone
        train(alone, "")
    assert train(tasks_config(task_sets, run, num_train_epochs=3), "") == read_record(together / "run.json")


def test_a_head_with_the_encoder_of_another_epoch_is_refused(together: Path, tmp_path: Path) -> None:
    shutil.copytree(together, tmp_path / "run")
    one, other = tmp_path / "run" / "opinion", tmp_path / "run" / "roles"
    first, second = Student.load(one), Student.load(other)
    with torch.no_grad():
        first.encoder.tables()[0].weight[3] += 1
    save_sharing({one: (first.config_json, first)})  # as if it had been killed before the second
    assert Student.load(one).state_dict().keys() == first.state_dict().keys()
    assert same(other, together / "roles")  # whole as it was
    shutil.copy(one / ENCODER_FILE, other / ENCODER_FILE)  # as if before the second's head
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", "encoder.safetensors")):
        Student.load(other)
    data = bytearray((together / "roles" / ENCODER_FILE).read_bytes())
    data[-1] ^= 1
    (other / ENCODER_FILE).unlink()  # another name of it lies in the other folders
    (other / ENCODER_FILE).write_bytes(data)
    with pytest.raises(IntegrityError, match=naming("run/roles/model.safetensors: ")):
        Student.load(other)
    second.save(other)  # by itself, whole again, whatever encoder lies beside
    assert same(other, together / "roles")
    (one / ENCODER_FILE).unlink()
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", "encoder.safetensors")):
        Student.load(one)
