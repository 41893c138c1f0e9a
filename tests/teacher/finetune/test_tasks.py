"""Teachers of several tasks with one encoder: what they share, that a dump takes them, and what a kill leaves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, TeacherError
from pipeline.record_file import Record, read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.settings import as_flags
from pipeline.tasks.task import load_task
from pipeline.training.joint import JointTask
from pipeline.training.loop import train_step
from pipeline.training.run import CHECKPOINT
from teacher.dumps import dump
from teacher.finetune.classifier import ENCODER_FILE, HEAD_FILE, finetune, new_teachers, targets_of, train_tasks
from teacher.finetune.tasks import training_source
from teacher.finetune_settings import FinetuneSettings, FinetuneTasks
from teacher.models.loaded import load_config
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.dumps import dump_config
from tests.helpers.entities import MANIFEST
from tests.helpers.messages import naming

Config = Callable[..., FinetuneSettings]
TASKS = ("opinion", "ratings", "roles")


@pytest.fixture(scope="module")
def config(work: Path, ratings: dict[str, ExampleSet], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Settings for the tiny BERT and tasks of sentences, of scores and of pairs."""
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(work / "data", folder / "data")
    for name in ("opinion", "roles"):
        shutil.copy(work / f"{name}.yaml", folder)
    scores = ratings["score"].root.parents[1]
    shutil.copy(scores / "ratings.yaml", folder)
    (folder / "data" / "ratings").mkdir()
    for split in ("train", "validation"):
        shutil.copy(scores / f"{split}.jsonl", folder / "data" / "ratings")

    def make(output_dir: Path, names: tuple[str, ...] = TASKS, **changes: Any) -> FinetuneSettings:
        settings: dict[str, Any] = {
            "tasks": ",".join(str(folder / f"{name}.yaml") for name in names),
            "data": folder / "data",
            "model_name_or_path": str(work / "bert"),
            "output_dir": output_dir,
            "num_train_epochs": 2,
            "learning_rate": 1e-3,
            "per_device_train_batch_size": 32,
            "max_seq_length": 32,
        }
        return FinetuneSettings.from_flags(**settings | changes)

    return make


@pytest.fixture(scope="module")
def together(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    """Finished teachers of the three tasks, and the record; read only."""
    folder = tmp_path_factory.mktemp("together")
    return folder, finetune(config(folder), "distill finetune-teacher")


def state(folder: Path) -> dict[str, torch.Tensor]:
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return dict(model.state_dict())


def same(one: Path, other: Path) -> bool:
    a, b = state(one), state(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_teachers_of_one_task_are_ordinary_ones(config: Config, work: Path, tmp_path: Path) -> None:
    joint = finetune(config(tmp_path / "mt", ("opinion",)), "")
    flags = {"tasks": None, "manifest": work / "opinion.yaml", "data": work / "data"}
    alone = finetune(config(tmp_path / "alone", **flags), "")
    assert same(tmp_path / "mt" / "opinion", tmp_path / "alone")
    own = read_work_record(tmp_path / "mt" / "opinion" / "finetune.json")
    assert own["result"] == alone["result"]
    assert own["settings"] == alone["settings"] | {"tasks": ["opinion"]}
    assert joint["result"]["best"]["metrics"]["tasks"] == {
        "mean": alone["result"]["best"]["metrics"]["validation"]["accuracy"]
    }


def test_the_encoder_is_shared_and_written_once(together: tuple[Path, Record]) -> None:
    folder, _ = together
    assert len({(folder / task / ENCODER_FILE).stat().st_ino for task in TASKS}) == 1
    states = {task: state(folder / task) for task in TASKS}
    encoder = load_file(folder / "roles" / ENCODER_FILE)
    assert all(name.startswith("bert.") for name in encoder)
    assert all(torch.equal(states[task][name], encoder[name]) for task in TASKS for name in encoder)
    heads = {task: load_file(folder / task / HEAD_FILE) for task in TASKS}
    assert [len(heads[task]["classifier.weight"]) for task in TASKS] == [2, 1, 2]
    assert json.loads((folder / "roles" / "config.json").read_text())["id2label"] == {"0": "different", "1": "same"}


def test_a_dump_takes_a_teacher_with_the_scores_of_the_best_epoch(
    together: tuple[Path, Record], work: Path, tmp_path: Path
) -> None:
    folder, record = together
    best = record["result"]["best"]
    for task in ("opinion", "roles"):
        dump(dump_config(work, task, tmp_path / "store", model_name_or_path=str(folder / task)), "")
        scores = ExampleSet.open(tmp_path / "store" / task).record.scores["validation"]
        assert scores == pytest.approx(best["metrics"][f"{task}/validation"])
        own = read_work_record(folder / task / "finetune.json")["result"]["best"]
        assert own == best | {"metrics": {"validation": best["metrics"][f"{task}/validation"]}}
    firsts = [best["metrics"][f"{task}/validation"] for task in TASKS]
    assert best["metrics"]["tasks"]["mean"] == pytest.approx(sum(next(iter(one.values())) for one in firsts) / 3)
    with pytest.raises(DataError, match=naming("config.json", *TASKS)):
        load_config(str(folder), None)


def test_a_step_leaves_the_heads_of_other_tasks(config: Config, tmp_path: Path) -> None:
    made = config(tmp_path, ("opinion", "roles"))
    assert isinstance(made.learn, FinetuneTasks)
    tasks = [load_task(manifest=Path(name)) for name in made.learn.names]
    teachers = new_teachers(made.encoder, made.steps.max_seq_length, tasks, targets_of(tasks, None))
    assert teachers[0].model.base_model is teachers[1].model.base_model
    sources = [training_source(task, made.learn.data) for task in tasks]
    model, by_name, optimizer = train_tasks(
        made.optimizer, made.steps, made.learn, list(zip(tasks, sources, teachers, strict=True)), Accelerator(cpu=True)
    )
    joint = JointTask(model, by_name, made.steps.seed, lambda _: None)
    assert joint.batches.steps_per_epoch == 2 * 3  # 96 rows of each in batches of 32
    weights = [teacher.model.classifier.weight for teacher in teachers]
    moved = []
    for step in range(6):
        before = [weight.detach().clone() for weight in weights]
        shared = teachers[0].model.base_model.embeddings.word_embeddings.weight.detach().clone()
        train_step(joint, optimizer, step)
        moved.append([not torch.equal(weight, was) for weight, was in zip(weights, before, strict=True)])
        assert not torch.equal(shared, teachers[1].model.base_model.embeddings.word_embeddings.weight)
    assert sorted(moved) == [[False, True]] * 3 + [[True, False]] * 3


@pytest.mark.slow
def test_killed_and_repeated_is_as_undisturbed(config: Config, tmp_path: Path) -> None:
    changes = {"num_train_epochs": 2, "save_steps": 9, "per_device_train_batch_size": 16}
    undisturbed = finetune(config(tmp_path / "whole", **changes), "")
    killed = config(tmp_path / "killed", **changes)
    kept = tmp_path / "killed" / "opinion" / HEAD_FILE
    kill_when(distill("finetune-teacher", *as_flags(killed)), kept.exists)  # while it keeps the first epoch, or soon
    assert (tmp_path / "killed" / CHECKPOINT).exists()
    with pytest.raises(TeacherError, match=naming("killed/opinion: ", "distill finetune-teacher")):
        load_config(str(tmp_path / "killed" / "opinion"), None)
    assert finetune(killed, "")["result"] == undisturbed["result"]
    assert all(same(tmp_path / "killed" / task, tmp_path / "whole" / task) for task in TASKS)


def test_what_does_not_go_together_is_refused(config: Config, together: tuple[Path, Record], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--tasks: ", "opinion")):
        finetune(config(tmp_path, ("opinion", "opinion")), "")
    with pytest.raises(ConfigError, match=naming("--task: ", "--tasks")):
        finetune(config(tmp_path, task="mrpc"), "")
    with pytest.raises(ConfigError, match=naming("--task: ", "'mrcp'", "'mrpc'")):
        finetune(config(tmp_path, tasks="mrcp,sst2"), "")
    words = together[0].parent / "entities.yaml"
    words.write_text(MANIFEST)
    with pytest.raises(ConfigError, match=naming("--tasks: ", "entities")):
        finetune(config(tmp_path, tasks=f"mrpc,{words}"), "")
    printed = invoke("finetune-teacher", *as_flags(config(tmp_path)), "--corpus", "tiny")
    assert printed.exit_code == 2
    with pytest.raises(FingerprintMismatchError, match=naming("tasks: ", "opinion.metrics: ")):
        finetune(config(together[0], ("opinion",)), "")
    assert not list(tmp_path.iterdir())


def test_an_objective_is_for_the_tasks_with_scores(config: Config, tmp_path: Path) -> None:
    learn = config(tmp_path).learn
    assert isinstance(learn, FinetuneTasks)
    tasks = [load_task(manifest=Path(name)) for name in learn.names]
    assert [target.kind for target in targets_of(tasks, "classification")] == ["classes", "bins", "classes"]
    assert [target.kind for target in targets_of(tasks, "regression")] == ["classes", "score", "classes"]
    with pytest.raises(ConfigError, match=naming("--objective regression: ", "'opinion'")):
        targets_of([tasks[0], tasks[2]], "regression")
