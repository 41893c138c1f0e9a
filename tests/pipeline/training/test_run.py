import json
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import Record, read_work_record
from pipeline.shared_settings import ReportFlags
from pipeline.training.best_epoch import best_of
from pipeline.training.checkpoint import save_checkpoint
from pipeline.training.joint import entry_of, joint_scores, joint_settings
from pipeline.training.run import CHECKPOINT, Progress, Run
from pipeline.training.run_record import METRICS_FILE, TENSORBOARD_FOLDER, Entry, flat, kind_of_folder, tracker
from tests.helpers.messages import naming
from tests.helpers.toy_run import EPOCHS, STEPS, contents, toy_run


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def test_progress_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    run = Run(tmp_path, {}, "")
    run.start()
    assert run.resume(*parts()) == Progress()
    history = [{"epoch": 1, "loss": 0.5, "metrics": {}}]
    progress = Progress(7, history, loss_sum=0.1, num_rows=3, data_state=[2, 5])
    run.save(*parts(), progress)
    assert run.resume(*parts()) == progress


def test_life_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"seed": 1, "learning_rate": 5e-4, "where": None, "sizes": [20, 400], "name": "é"}
    path = tmp_path / "new" / "run.json"

    def start(command: str, place: str = "a", **changes: object) -> Record | None:
        return Run(path.parent, settings | changes, command, {"place": place}).start()

    assert start("mistyped", seed=2) is None
    assert start("distill train-student") is None  # a run without a checkpoint has nothing to lose
    assert "settings" in capsys.readouterr().err
    begun = {"state": "running", "command": "distill train-student", "settings": settings}
    assert read_work_record(path) == begun | {"place": "a"}
    (path.parent / CHECKPOINT).touch()
    assert start("interrupted: it goes on") is None
    finished = Run(path.parent, settings, "").finish({"accuracy": 0.9})
    assert capsys.readouterr().err.startswith(f"{path.parent}: ")
    assert finished == begun | {"place": "a", "state": "finished", "result": {"accuracy": 0.9}}
    before = path.stat().st_mtime_ns
    assert start("once more") == finished == read_work_record(path)
    assert path.stat().st_mtime_ns == before
    assert start("once more", place="b") == read_work_record(path) == finished | {"place": "b"}


def test_a_run_that_another_has_taken_the_folder_of_writes_nothing(tmp_path: Path) -> None:
    first, second = (Run(tmp_path, {"seed": seed}, "") for seed in (1, 2))
    assert first.start() is None
    assert second.start() is None  # the first has no checkpoint yet: it may as well have been killed
    before = contents(tmp_path)
    with pytest.raises(FingerprintMismatchError, match=naming("seed: 2", "--output-dir")):
        first.save(*parts(), Progress(1))
    assert contents(tmp_path) == before
    second.save(*parts(), Progress(1))
    assert second.finish({})["settings"] == {"seed": 2}


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    run = Run(tmp_path, {"seed": 1, "where": None, "name": "é"}, "")
    run.start()
    if finished:
        run.finish({})
    (tmp_path / CHECKPOINT).touch()
    before = contents(tmp_path)
    with pytest.raises(FingerprintMismatchError) as caught:
        Run(tmp_path, {"seed": 2, "where": "label = 1", "new": 3}, "").start()
    lines = str(caught.value).splitlines()
    assert lines[1:5] == [
        "  - name: é there, nothing now",
        "  - new: nothing there, 3 now",
        "  - seed: 1 there, 2 now",
        "  - where: nothing there, label = 1 now",
    ]
    assert "--output-dir" in lines[5]
    assert contents(tmp_path) == before


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    first, other = (Run(tmp_path, {"seed": 1}, "", record_name="a.json", rank=rank) for rank in (0, 1))
    assert first.start() is None
    before = contents(tmp_path)
    assert other.start() is None
    other.save(*parts(), Progress(1))
    assert other.finish({"a": 1}) == {}
    assert contents(tmp_path) == before
    assert first.finish({"a": 1}) == read_work_record(tmp_path / "a.json")
    assert other.start() == {}


def test_a_checkpoint_of_another_kind_of_progress(tmp_path: Path) -> None:
    run = Run(tmp_path, {}, "")
    save_checkpoint(tmp_path / CHECKPOINT, *parts(), {"epoch": 1})
    with pytest.raises(IntegrityError, match=naming(f"{CHECKPOINT}: ", "'epoch'")):
        run.resume(*parts())


def test_of_two_at_once_the_first_result_stays(tmp_path: Path) -> None:
    first, second = Run(tmp_path, {"seed": 1}, ""), Run(tmp_path, {"seed": 1}, "")
    assert first.start() is None
    assert second.start() is None
    finished = first.finish({"accuracy": 0.9})
    assert second.finish({}) == finished == read_work_record(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"run\.json: "),
        ("[]", r"run.json: .*list"),
        ('{"state": "running"}', r"run\.json: "),
        (b"\xff", r"run\.json: "),
    ],
)
def test_damaged_record(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IntegrityError, match=message):
        read_work_record(tmp_path / "run.json")


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path.name}: ", "run.json")):
        read_work_record(tmp_path / "run.json")
    with pytest.raises(IntegrityError, match="mistyped: "):
        read_work_record(tmp_path / "mistyped" / "run.json")


@pytest.mark.parametrize(
    ("files", "kind"), [([], None), (["run.json"], "run"), (["sweep.json"], "sweep"), (["distill.json"], None)]
)
def test_a_folder_is_what_its_record_says(tmp_path: Path, files: list[str], kind: str | None) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    assert kind_of_folder(tmp_path) == kind


def test_the_first_dev_split_with_gold_decides_which_is_best() -> None:
    def entry(epoch: int, **metrics: dict[str, float]) -> Entry:
        return {"epoch": epoch, "loss": 1.0, "metrics": metrics}

    scored = [entry(n, test={}, validation={"f1": f1, "accuracy": 1 - f1}) for n, f1 in ((1, 0.5), (2, 0.7), (3, 0.6))]
    assert best_of(scored)["epoch"] == 2
    assert best_of([entry(n, test={}) for n in (1, 2, 3)])["epoch"] == 3
    for name in ("test", "test_matched", "mnli/test"):  # a test split never decides, so the last epoch is the best
        assert best_of([entry(n, **{name: {"f1": 1 / n}}) for n in (1, 2, 3)])["epoch"] == 3


ENTRY = {"epoch": 3, "loss": 0.5, "metrics": {"dev": {"accuracy": 0.25, "f1": 1.0}, "other": {"accuracy": 0.75}}}
FLAT = {"epoch": 3, "loss": 0.5, "dev/accuracy": 0.25, "dev/f1": 1.0, "other/accuracy": 0.75}


def test_an_entry_has_a_number_for_each_split_and_metric() -> None:
    assert flat(ENTRY) == FLAT


@pytest.mark.parametrize("schedule", [EPOCHS, STEPS])
def test_metrics_are_the_history_a_line_each(schedule: object, tmp_path: Path) -> None:
    history = toy_run(tmp_path, schedule)["result"]["history"]  # type: ignore[arg-type]
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(map(flat, history))
    assert len(lines) > 2


def test_tensorboard_is_told_of_each_entry(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for epoch in (3, 4):  # as a run that was stopped between them
        with tracker("tensorboard", tmp_path) as track:
            track(ENTRY | {"epoch": epoch})
    events = accumulator.EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER))
    events.Reload()
    for name, value in flat(ENTRY).items():
        if name != "epoch":
            assert [(event.step, event.value) for event in events.Scalars(name)] == [(3, value), (4, value)]


def test_a_tracker_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.shared_settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=naming("--report-to: ", "tensorboard", "'distill-offline[tensorboard]'")):
        ReportFlags.from_flags(report_to="tensorboard")


def test_settings_that_differ_or_that_one_task_alone_has_bear_its_name() -> None:
    settings = {"a": {"seed": 1, "rows": 5, "mix": None}, "b": {"seed": 1, "rows": 6, "rows.dev": 3, "mix": None}}
    assert joint_settings(settings) == {"seed": 1, "mix": None, "a.rows": 5, "b.rows": 6, "b.rows.dev": 3}
    assert joint_settings({"b": settings["b"], "a": settings["a"]}) == joint_settings(settings)
    assert joint_settings({"a": settings["a"]}) == settings["a"]


def test_the_mean_is_that_of_first_metrics_on_first_splits() -> None:
    scores = {
        "a": {"dev": {"accuracy": 0.5, "f1": 0.0}, "other": {"accuracy": 0.0}},
        "b": {"dev": {"pearson": 0.75}},
        "no dev": {},
        "no gold": {"dev": dict[str, float]()},
    }
    joint = joint_scores(scores)
    assert next(iter(joint.items())) == ("tasks", {"mean": 0.625})
    assert list(joint) == ["tasks", "a/dev", "a/other", "b/dev", "no gold/dev"]
    assert joint_scores({"no dev": {}}) == {}
    entry = {"epoch": 2, "loss": 0.1, "metrics": joint}
    assert entry_of("a", entry) == {"epoch": 2, "loss": 0.1, "metrics": scores["a"]}
    assert entry_of("no dev", entry)["metrics"] == {}
