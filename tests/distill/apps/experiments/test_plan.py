"""Teachers that start from another task's: the commands, in their order, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from distill.apps.app_settings import ExperimentSettings
from distill.apps.experiments.comparison import planned
from distill.apps.experiments.plan import plans
from pipeline.errors import ConfigError, DataError
from tests.helpers.messages import naming

ROW = {"sentence1": "it rains .", "sentence2": "it pours .", "label": 0}
SOME = "sets: {default: {}}\nstudents: {default: {}}\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RTE and MNLI of one row, below the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    for task in ("rte", "mnli"):
        write_rows(Path("data") / task)


def write_rows(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "validation", "validation_matched"):
        (folder / f"{split}.jsonl").write_text(json.dumps(ROW))


def config(tasks: str = "rte", text: str | None = None, **changes: object) -> ExperimentSettings:
    if text is not None:
        Path("own.yaml").write_text(SOME + text)
    places = {"data": Path("data"), "output_dir": Path("out"), "model_name_or_path": "bert"}
    places |= {"experiment": "glue" if text is None else "own.yaml"}
    return ExperimentSettings.from_flags(**places | {"tasks": tasks, "seeds": 1} | changes)


def finetuning(config: ExperimentSettings) -> list[str]:
    lines = [line.removeprefix("distill finetune-teacher ") for line in planned(config) if " finetune-" in line]
    return [re.sub(r" --data \S+", "", line).replace("--model-name-or-path ", "from ") for line in lines]


MNLI = "--task mnli from bert --output-dir out/teachers/mnli/42 --seed 42 --held-out 0.1"
RTE = "--task rte from out/teachers/mnli/42 --output-dir out/teachers/rte/42 --seed 42 --held-out 0.1"
PLAIN = "--task rte from bert --output-dir out/teachers/rte/42 --seed 42 --held-out 0.1"


def test_rte_starts_from_the_teacher_of_mnli() -> None:
    assert finetuning(config()) == [MNLI, f"{RTE} --learning-rate 3e-05"]
    steps = [line.split()[1] for line in planned(config())]
    assert steps == ["finetune-teacher", "finetune-teacher", "teacher-dump", *["train-student"] * 3]


@pytest.mark.parametrize("tasks", ["rte,mnli", "mnli,rte"])
def test_it_is_the_teacher_of_its_own_row(tasks: str) -> None:
    assert finetuning(config(tasks)) == finetuning(config())
    by_name = {plan.task.name: plan for plan in plans(config(tasks))}
    assert by_name["rte"].start is by_name["mnli"]
    [alone] = plans(config())
    assert alone.start is not None
    assert alone.start.finetune() == by_name["mnli"].finetune()


def test_each_seed_starts_from_that_seed() -> None:
    other = [line.replace("42", "43") for line in (MNLI, RTE)]
    lines = finetuning(config(text="tasks: {rte: {teacher: {from: mnli}}}", teacher_seeds=2))
    assert lines == [MNLI, other[0], RTE, other[1]]


def test_a_start_may_have_a_start() -> None:
    write_rows(Path("data/qnli"))
    Path("data/qnli/train.jsonl").write_text(json.dumps(ROW).replace("sentence1", "question"))
    lines = finetuning(config("qnli", "teacher: {from: rte}\ntasks: {rte: {teacher: {from: null}}}"))
    assert [line.split()[1:4] for line in lines] == [["rte", "from", "bert"], ["qnli", "from", "out/teachers/rte/42"]]
    lines = finetuning(config("qnli", "tasks: {qnli: {teacher: {from: rte}}, rte: {teacher: {from: mnli}}}"))
    assert [line.split()[1] for line in lines] == ["mnli", "rte", "qnli"]


def test_without_rows_the_plan_of_the_package_starts_from_the_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data/mnli/train.jsonl").unlink()
    for tasks in ("rte", "rte,mnli"):
        assert finetuning(config(tasks)) == [PLAIN]
        assert "mnli" in capsys.readouterr().err
        assert plans(config(tasks))[0].absent_start == "mnli"


def test_without_rows_an_experiment_that_asks_for_them_is_refused() -> None:
    Path("data/mnli/train.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        plans(config(text="tasks: {rte: {teacher: {from: mnli}}}"))
    assert all(part in str(caught.value) for part in ("--experiment own.yaml: ", "rte: from: mnli: ", "`from`"))


def test_rows_of_one_task_are_not_taken_for_those_of_its_start() -> None:
    assert finetuning(config(data=Path("data/rte"))) == [PLAIN]


def test_teachers_that_are_there_start_from_nothing() -> None:
    Path("data/mnli/train.jsonl").unlink()
    Path("teachers/rte").mkdir(parents=True)
    [plan] = plans(config(text="tasks: {rte: {teacher: {from: mnli}}}", teachers=Path("teachers")))
    assert (plan.start, plan.finetune(), plan.teacher()) == (None, [], "teachers/rte")


def test_without_teachers_those_of_the_manifests_come_from_the_hub() -> None:
    hub = config("rte", experiment="papers", model_name_or_path=None)
    [plan] = plans(hub)
    assert (plan.finetune(), plan.teacher()) == ([], "textattack/bert-base-uncased-RTE")
    lines = planned(hub)
    dumps = [line for line in lines if line.startswith("distill teacher-dump --task rte --data data --store ")]
    students = [line for line in lines if line.startswith("distill train-student --set out/logits/rte")]
    assert (len(dumps), len(students), len(lines)) == (3, 35, 38)


def test_what_is_not_fine_tuned_needs_no_start() -> None:
    Path("data/rte/train.jsonl").unlink()
    assert planned(config()) == []
    assert plans(config())[0].start is None


def test_every_wrong_name_is_told_at_once() -> None:
    tasks = "rte: {teacher: {from: mnlii}}, mrpc: {teacher: {from: qqp}}, qqp: {teacher: {from: mrpc}}, mnl: {}"
    with pytest.raises(ConfigError) as caught:
        plans(config(text=f"teacher: {{from: cola}}\ntasks: {{{tasks}}}"))
    lines = str(caught.value).splitlines()
    named = [
        ("--experiment own.yaml: 4 problems",),
        ("'mnl'", "'mnli'"),
        ("tasks: rte: teacher: from: ", "'mnlii'", "'mnli'"),
        ("teacher: from: cola from cola", "`from: null`"),
        ("teacher: from: mrpc from qqp from mrpc", "`from: null`"),
    ]
    assert all(part in line for parts, line in zip(named, lines, strict=True) for part in parts)


def test_what_is_no_name_is_told() -> None:
    with pytest.raises(ConfigError, match=naming("--experiment own.yaml: ", "tasks.rte.teacher: ", "{'from': 3}")):
        plans(config(text="tasks: {rte: {teacher: {from: 3}}}"))
