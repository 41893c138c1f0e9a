"""Workers on a cluster of this machine: every piece once, whoever dies, and an end where nothing would mend it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cluster.ray_pool import RayFlags, RayPool, WorkerTask, on_cluster, workers_that_fit, workers_to_start
from pipeline.errors import ConfigError, DistillError, TeacherError
from pipeline.interrupts import Stopped, handling_signals
from student.settings import SweepSettings
from teacher.settings import DumpSettings
from tests.helpers.messages import naming

pytestmark = pytest.mark.slow
FLAGS, ALONE = RayFlags(ray="local"), RayFlags(ray="local", ray_workers=1)


def start(shared: dict[str, Any]) -> Callable[[int], int]:
    """A worker that adds. It dies, fails or records its work, as ``shared`` determines."""
    if shared.get("refuses"):
        raise TeacherError("no teacher here")
    folder = Path(shared["folder"])

    def add(piece: int) -> int:
        times = len(list(folder.glob(f"{piece}-*")))
        (folder / f"{piece}-{times}").touch()
        if times < shared.get("dies", {}).get(piece, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if piece == shared.get("fails"):
            raise TeacherError("says NaN")
        return piece + int(shared["plus"])

    return add


def work_off(folder: Path, pieces: int, flags: RayFlags = ALONE, **shared: Any) -> dict[int, int]:
    """What comes of the pieces 0, 1, …; how often each was begun is in the folder."""
    task = WorkerTask(start, shared | {"folder": str(folder), "plus": 10}, ("pydantic",))
    with on_cluster(flags) as ray:
        pool: RayPool[int, int] = RayPool(ray, flags, task, lambda piece: f"piece {piece}", lambda piece: piece)
        done = list(pool.results(range(pieces)))
    assert len(done) == len(dict(done))
    return dict(done)


def begun(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dead_workers_piece_is_done_again_and_nothing_else_is(
    ray_cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work_off(tmp_path, 5, FLAGS, dies={0: 1, 3: 1}) == {k: k + 10 for k in range(5)}
    assert begun(tmp_path) == ["0-0", "0-1", "1-0", "2-0", "3-0", "3-1", "4-0"]
    told = capsys.readouterr().err
    assert "piece 3: " in told
    assert "5 pieces" in told
    assert "2 workers" in told


def test_a_piece_that_kills_three_workers_is_named_and_given_up(ray_cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(DistillError, match=naming("piece 1: 3 workers", "--ray")):
        work_off(tmp_path, 2, dies={1: 9})
    assert [name for name in begun(tmp_path) if name.startswith("1-")] == ["1-0", "1-1", "1-2"]


def test_what_a_worker_says_is_wrong_ends_it_and_names_the_piece(ray_cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"^piece 0: .*NaN"):
        work_off(tmp_path, 40, fails=0)
    assert begun(tmp_path) == ["0-0"]
    with pytest.raises(TeacherError, match=r"^no teacher here$"):
        work_off(tmp_path, 1, refuses=True)


def test_a_machine_with_other_versions_is_refused(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cluster.ray_pool.version", lambda _: "0.1")
    problem = r", process \d+: .*pydantic .*0\.1"
    with pytest.raises(ConfigError, match=problem):
        work_off(tmp_path, 1)
    assert begun(tmp_path) == []


def test_after_sigterm_what_is_in_hand_is_done_and_no_more(ray_cluster: Any, tmp_path: Path) -> None:
    done: list[int] = []
    task = WorkerTask(start, {"folder": str(tmp_path), "plus": 0})
    pool: RayPool[int, int] = RayPool(ray_cluster, FLAGS, task, str, lambda piece: piece)

    def use_all() -> None:
        for piece, _ in pool.results(range(50)):
            if not done:
                os.kill(os.getpid(), signal.SIGTERM)
            done.append(piece)

    with pytest.raises(Stopped), handling_signals():
        use_all()
    assert len(done) <= 3
    assert begun(tmp_path) == sorted(f"{piece}-0" for piece in done)


def test_flags_that_say_nothing_or_nonsense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=naming("--ray-workers: ", "--ray")):
        SweepSettings.from_flags(ray_workers=2)
    with pytest.raises(ConfigError, match=naming("--ray-write: ", "--ray")):
        DumpSettings.from_flags(task="sst2", ray_write="workers")
    for text in ("GPU", "[]", "{}", '{"GPU": 0}', '{"GPU": true}', '{"GPU": 1.5}', '{"CPU": 0.00001}'):
        with pytest.raises(ConfigError, match="--ray-resources: "):
            RayFlags.from_flags(ray="auto", ray_resources=text)
    assert RayFlags(ray="auto", ray_resources='{"GPU": 0.5, "CPU": 4}').resources == {"GPU": 0.5, "CPU": 4}
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=naming("--ray: ", "accelerate or torchrun")):
        RayFlags.from_flags(ray="auto")


def test_as_many_workers_as_there_is_room_for() -> None:
    eight = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}
    six, lost = {"Alive": True, "Resources": {"CPU": 6.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}
    assert workers_that_fit({"CPU": 4}, [eight]) == 2
    assert workers_that_fit({"CPU": 4}, [eight, six, lost]) == 3  # what is left of each machine is no fourth
    assert workers_that_fit({"CPU": 1, "GPU": 0.5}, [eight, six]) == 4
    assert workers_to_start(FLAGS, {"CPU": 4}, [eight, six]) == 3
    assert workers_to_start(ALONE, {"CPU": 4}, [eight, six]) == 1
    assert workers_to_start(RayFlags(ray="auto"), {"TPU": 1}, [eight]) == 1  # a machine that has one may come
    with pytest.raises(ConfigError, match=naming("--ray-resources: ", {"CPU": 9, "TPU": 1}, {"CPU": 8.0})):
        workers_to_start(ALONE, {"CPU": 9, "TPU": 1}, [eight])


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(DistillError, match=naming("--ray", "'distill-offline[ray]'")), on_cluster(FLAGS):
        pass
