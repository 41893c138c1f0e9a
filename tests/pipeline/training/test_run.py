from pathlib import Path

import pytest
import torch

from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.record_file import Record, read_work_record
from pipeline.training.checkpoint import save_checkpoint
from pipeline.training.run import CHECKPOINT, Progress, Run
from tests.helpers.messages import naming
from tests.helpers.toy_run import contents


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
