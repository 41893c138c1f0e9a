"""Students of several tasks with one encoder: what they share, what they do not, and what a kill leaves."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from distill.apps.app_settings import ReportSettings
from distill.apps.report.page import render
from distill.apps.report.run_page import run_page
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import STUDENT_FILE, WEIGHTS_FILE
from pipeline.record_file import read_record, read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.settings import as_flags, flat
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from pipeline.training.joint import JointTask
from pipeline.training.loop import TrainOptimizer, train_step
from pipeline.training.run import CHECKPOINT
from student.data import load_examples
from student.describe import describe
from student.evaluate import evaluate
from student.lessons.examples import ExampleTask
from student.model.build_config import build_config
from student.model.heads import hidden_layer
from student.model.student import Student, share_hidden
from student.model.weights import ENCODER_FILE, read_weights, save_sharing
from student.predict.predictor import Predictor
from student.record import reproduce
from student.row_adam import make_optimizer
from student.run_settings import EvaluateSettings
from student.settings import Divergence, Loss, TrainSettings
from student.train import train
from student.training_data import task_facts
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.dumps import dump_config
from tests.helpers.joint_runs import STILL, TASKS, same, tasks_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import student


def test_a_run_of_one_task_is_an_ordinary_run(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    changes = {"per_device_train_batch_size": 32}
    joint = train(tasks_config([store / "opinion"], tmp_path, **changes), "")["result"]
    assert same(tmp_path / "opinion", opinion_run)
    own, ordinary = (read_record(run / "run.json") for run in (tmp_path / "opinion", opinion_run))
    assert own["result"].pop("chosen_by") == "the mean over opinion"
    assert own["result"] == ordinary["result"]
    assert own["settings"] == ordinary["settings"] | {"tasks": ["opinion"]}
    assert joint["best"]["metrics"]["tasks"]["mean"] == ordinary["result"]["best"]["metrics"]["validation"]["accuracy"]


def test_the_same_seed_gives_the_same_students_and_another_does_not(
    together: Path, task_sets: list[Path], tmp_path: Path
) -> None:
    for name, seed, epochs in (("again", 42, 3), ("other", 1, 1)):
        train(tasks_config(task_sets, tmp_path / name, num_train_epochs=epochs, seed=seed), "")
    assert all(same(tmp_path / "again" / task, together / task) for task in TASKS)
    assert not any(same(tmp_path / "other" / task, together / task) for task in TASKS)


def test_the_encoder_is_shared_and_written_once(together: Path) -> None:
    assert len({(together / task / ENCODER_FILE).stat().st_ino for task in TASKS}) == 1
    one, *others = (read_weights(together / task, "encoder.") for task in TASKS)
    assert len(one) == 3 + 2  # tables of tokens; pairs of them, and their table
    assert all(torch.equal(one[name], other[name]) for other in others for name in one)
    assert all(name.startswith("head.") for task in TASKS for name in load_file(together / task / WEIGHTS_FILE))
    assert sorted(path.name for path in together.iterdir()) == [
        "metrics.jsonl",
        *sorted((*TASKS, "run.json", STUDENT_FILE)),
    ]


def test_heads_with_the_same_inputs_share_their_hidden_layer(together: Path) -> None:
    opinion, roles, score = (load_file(together / task / WEIGHTS_FILE) for task in TASKS)
    for name in ("head.0.weight", "head.0.bias"):
        assert torch.equal(opinion[name], score[name])  # trained, and saved at the same epoch
    assert opinion["head.0.weight"].shape != roles["head.0.weight"].shape  # pairs have other inputs
    assert not torch.equal(opinion["head.2.weight"], score["head.2.weight"])  # the LayerNorm is each task's own


def test_a_batch_of_one_task_moves_the_hidden_layer_of_the_other(task_sets: list[Path]) -> None:
    joint, optimizer, students = two_tasks([task_sets[0], task_sets[2]], can_share=True)
    assert hidden_layer(students[0].head) is hidden_layer(students[1].head)
    states = [[[p.detach().clone() for p in one.head.parameters()] for one in students]]
    for step in range(12):
        train_step(joint, optimizer, step)
        states.append([[p.detach().clone() for p in one.head.parameters()] for one in students])
    for before, after in pairwise(states):
        moved = [[not torch.equal(a, b) for a, b in zip(*two, strict=True)] for two in zip(before, after, strict=True)]
        assert all(one[:2] == [True, True] for one in moved)  # the hidden layer
        assert sorted(one[2:] for one in moved) == [[False] * 4, [True] * 4]  # the rest of one task's head alone


def test_the_mean_of_the_first_metrics_chooses_the_epoch(together: Path) -> None:
    result = read_record(together / "run.json")["result"]
    firsts = {"opinion/validation": "accuracy", "roles/validation": "accuracy", "score/validation": "pearson"}
    means = [np.mean([entry["metrics"][split][name] for split, name in firsts.items()]) for entry in result["history"]]
    assert [entry["metrics"]["tasks"]["mean"] for entry in result["history"]] == pytest.approx(means)
    assert result["best"]["epoch"] == 1 + int(np.argmax(means))


def test_each_folder_is_a_run_with_the_scores_of_the_best_epoch(together: Path, task_sets: list[Path]) -> None:
    best = read_record(together / "run.json")["result"]["best"]
    for task in TASKS:
        scores = evaluate(EvaluateSettings(run=together / task))["validation"]["gold"]
        assert scores == pytest.approx(best["metrics"][f"{task}/validation"], abs=1e-6)
        record = read_record(together / task / "run.json")
        assert record["result"]["best"]["metrics"] == {"validation": best["metrics"][f"{task}/validation"]}
        assert record["result"]["evaluation"]["validation"]["gold"] == scores
        assert f"# {Student.load(together / task).config.task} student" in (together / task / "README.md").read_text()
    whole = evaluate(EvaluateSettings(run=together))
    assert {key: whole[key]["gold"] for key in whole} == {
        key: pytest.approx(best["metrics"][key], abs=1e-6) for key in (f"{task}/validation" for task in TASKS)
    }
    compared = reproduce(together, None, False)
    assert len(compared) == 4 * 3
    assert all(values["then"] == values["now"] for values in compared.values())


def test_a_predictor_takes_a_folder_or_the_name_of_a_task(together: Path) -> None:
    texts = ["the food was dull .", "the soup was great ."]
    answers = Predictor(together, task="opinion")(texts)
    assert answers == Predictor(together / "opinion")(texts)
    assert {answer["label"] for answer in answers} <= set(Student.load(together / "opinion").config.target.names)
    assert Predictor(together, task="score").student.config.target.kind == "score"


def test_a_run_of_several_tasks_names_its_students(together: Path, task_sets: list[Path], tmp_path: Path) -> None:
    students = [f"{together}/{task}" for task in TASKS]
    with pytest.raises(IntegrityError, match=naming(f"{together}: ", *students)):
        Predictor(together)
    with pytest.raises(IntegrityError, match=naming(f"{together}: ", *students)):
        describe(str(together))
    printed = invoke("certify", together, "--where", "label = 0")
    assert printed.exit_code == 2
    assert all(folder in printed.output.replace("\n", "") for folder in students)
    with pytest.raises(ConfigError, match=naming(f"--init {together}: ", *students)):
        train(tiny_config(task_sets[0], tmp_path / "run", init=together), "")


def test_the_report_of_a_run_of_several_tasks_tells_each_ones_scores(together: Path) -> None:
    page = run_page(ReportSettings(set_or_run=str(together)), together)
    (against_gold, _) = next(section for section in page.sections if section.title == "Scores").tables
    evaluation = read_work_record(together / "run.json")["result"]["evaluation"]
    expected = [
        (split, metric, value) for split, parts in evaluation.items() for metric, value in parts["gold"].items()
    ]
    assert [row[:3] for row in against_gold.rows if row[1] != "mean"] == expected
    assert {split for split, *_ in expected} == {f"{task}/validation" for task in ("opinion", "roles", "score")}
    assert f"distill report {together / 'roles'}" in render(page)


def test_the_command_prints_every_task(task_sets: list[Path], tmp_path: Path) -> None:
    flags = as_flags(tasks_config(task_sets, tmp_path / "mt", num_train_epochs=1))
    printed = invoke("train-student", *flags)
    assert printed.exit_code == 0, printed.output
    assert all(f"{task}/validation" in printed.output for task in TASKS)
    assert invoke("train-student", *flags, "--seed", "7").exit_code == 2
    report = invoke("report", tmp_path / "mt" / "roles", "--output", tmp_path / "page.html")
    assert report.exit_code == 0, report.output
    assert "opinion, roles, score" in (tmp_path / "page.html").read_text()


def two_tasks(task_sets: list[Path], can_share: bool = False) -> tuple[JointTask, TrainOptimizer, list[Student]]:
    """The first two tasks as one, what moves them, and their students, which may share a hidden layer."""
    logit_sets = [ExampleSet.open(root) for root in task_sets[:2]]
    config = tiny_config(task_sets[0], task_sets[0], per_device_train_batch_size=16, hidden_dropout=0.0)
    torch.manual_seed(0)
    students: list[Student] = []
    for logit_set in logit_sets:
        made = build_config(config, task_facts(logit_set))
        students.append(Student(made, students[0].encoder if students else None))
    if can_share:
        share_hidden(students)
    optimizer = make_optimizer(config.optimizer, students[0].encoder, *(one.head for one in students))
    tasks = {
        logit_set.name: ExampleTask(config, one, {"train": load_examples(logit_set, "train")}, optimizer)
        for one, logit_set in zip(students, logit_sets, strict=True)
    }
    return JointTask(torch.nn.ModuleList(students), tasks, config.seed, lambda _: None), optimizer, students


def test_a_batch_of_one_task_leaves_the_head_of_the_other_and_moves_what_they_share(task_sets: list[Path]) -> None:
    joint, optimizer, students = two_tasks(task_sets)
    assert students[0].encoder is students[1].encoder
    assert joint.batches.steps_per_epoch == 2 * 6  # 96 rows of each in batches of 16

    def state() -> tuple[Any, ...]:
        optimizer.catch_up()
        heads = (torch.cat([p.detach().flatten() for p in one.head.parameters()]) for one in students)
        return (*heads, torch.cat([table.weight.detach().flatten() for table in students[0].encoder.tables()]))

    states = [state()]
    for step in range(12):
        train_step(joint, optimizer, step)
        states.append(state())
    moved = [[not torch.equal(a, b) for a, b in zip(*two, strict=True)] for two in pairwise(states)]
    assert all(first != second and encoder for first, second, encoder in moved)  # one head of the two, never both
    assert sum(first for first, _, _ in moved) == 6
    assert len({tuple(one) for one in moved[:6]}) == 2  # not one task after the other


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_students(task_sets: list[Path], tmp_path: Path) -> None:
    long, tasks = {"num_train_epochs": 5, "early_stopping_patience": 5}, TASKS[:2]
    killed, whole = (tasks_config(task_sets[:2], tmp_path / name, **long) for name in ("killed", "whole"))
    kill_when(distill("train-student", *as_flags(killed)), (tmp_path / "killed" / CHECKPOINT).exists)
    for folder in ("", *tasks):
        assert json.loads((tmp_path / "killed" / folder / "run.json").read_text())["state"] == "running"
    resumed, undisturbed = train(killed, "again"), train(whole, "once")
    assert resumed["result"] == undisturbed["result"]
    assert not (tmp_path / "killed" / CHECKPOINT).exists()
    for task in tasks:
        assert same(tmp_path / "killed" / task, tmp_path / "whole" / task)
        assert read_record(tmp_path / "killed" / task / "run.json")["state"] == "finished"


def test_without_hard_links_the_encoder_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    one, other = student(), student(is_pair=True)
    other.encoder = one.encoder
    folders = {tmp_path / name: (model.config_json, model) for name, model in (("a", one), ("b", other))}
    for folder in folders:
        folder.mkdir()
    save_sharing(folders)
    assert (tmp_path / "a" / ENCODER_FILE).stat().st_nlink == 1
    assert (tmp_path / "a" / ENCODER_FILE).read_bytes() == (tmp_path / "b" / ENCODER_FILE).read_bytes()
    assert Student.load(tmp_path / "b").state_dict().keys() == other.state_dict().keys()


def test_flags_for_another_kind_of_task_do_not_reach_one() -> None:
    loss = Loss(soft=Divergence(temperature=2.0), class_weights="balanced")
    assert loss.of_task("score", {"score", "classes"}) == Loss()
    assert loss.of_task("classes", {"score", "classes"}) == loss
    assert loss.of_task("score", {"score"}) == loss  # which is refused, as of one task


def test_a_recipe_may_be_for_several_tasks(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("tasks: a,b\nalpha: 0.25\n")
    made = TrainSettings.from_flags(recipe=str(tmp_path / "all.yaml"))
    assert (flat(made)["tasks"], made.loss.alpha) == ("a,b", 0.25)
    assert "tasks" not in flat(TrainSettings.from_flags(recipe=str(tmp_path / "all.yaml"), task="c"))


def without_bigrams(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that do not depend on which rows there are: each set has its own pairs of tokens."""
    return {name: tensor for name, tensor in tensors.items() if "bigrams" not in name}


def test_a_student_goes_on_alone_with_its_encoder_and_its_head(
    together: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = {"init": together / "roles", "learning_rate": STILL}
    train(tiny_config(store / "roles", tmp_path / "roles", **start), "")
    assert f"{together}/roles" in capsys.readouterr().err
    ours, theirs = (
        without_bigrams(tensors) for tensors in (weights(tmp_path / "roles"), read_weights(together / "roles"))
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-20)
    train(tiny_config(store / "opinion", tmp_path / "opinion", **start), "")  # the encoder alone fits
    assert f"{together}/roles" in capsys.readouterr().err
    ours = without_bigrams(weights(tmp_path / "opinion"))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-20) for name in theirs if name.startswith("encoder."))


def test_an_encoder_starts_from_the_vectors_of_the_first_set_that_has_some(
    store: Path, vectors_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [store / "opinion", vectors_store / "roles"]
    train(tasks_config(sets, tmp_path, learning_rate=STILL), "")
    assert f"{vectors_store}/roles" in capsys.readouterr().err
    settings = {task: read_record(tmp_path / task / "run.json")["settings"] for task in ("opinion", "roles")}
    assert settings["opinion"]["token_vectors_sha256"] is None
    assert settings["roles"]["token_vectors_sha256"]
    train(tiny_config(vectors_store / "roles", tmp_path / "alone", learning_rate=STILL), "")
    ours, theirs = (read_weights(tmp_path / run)["encoder.vectors.table.weight"] for run in ("roles", "alone"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-20)


def test_sets_of_other_tokenizers_or_lengths_are_refused(work: Path, store: Path, tmp_path: Path) -> None:
    create_tiny_bert(tmp_path / "bert", [*(work / "sentences.txt").read_text().splitlines(), "wholly new words"], 32, 1)
    task = load_task(manifest=work / "roles.yaml")
    teacher = new_classifier(task, make_target(task), str(tmp_path / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, tmp_path / "teacher")
    changes = {"model_name_or_path": str(tmp_path / "teacher"), "name": "other", "max_seq_length": 30}
    dump(dump_config(work, "roles", tmp_path / "store", **changes), "")
    with pytest.raises(ConfigError) as caught:
        train(tasks_config([store / "opinion", tmp_path / "store" / "other"], tmp_path / "run"), "")
    assert "tokenizer" not in str(caught.value)
    sets = [store / "opinion", tmp_path / "store" / "other"]
    with pytest.raises(ConfigError) as caught:
        train(tasks_config(sets, tmp_path / "run", vocabulary="teacher"), "")
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
