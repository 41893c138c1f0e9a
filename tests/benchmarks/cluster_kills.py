"""Kills workers, drivers and a machine of a Ray cluster while they write a set, mixes all who may, compares every byte.

``python -m tests.benchmarks.cluster_kills --kills 20``: two workers here, the demo's task, a tiny teacher, its logits
and states; a fifth of the kills are the driver's, and as often it gets two SIGTERM. The machine is one of
`ray.cluster_utils.Cluster`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import console
from pipeline.files import TEMPORARIES
from pipeline.sets.record import read_set_record
from pipeline.settings import as_flags
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.settings import DumpSettings
from teacher.tiny import create_tiny_bert
from tests.helpers.commands import distill
from tests.helpers.forked import Forked
from tests.helpers.toy_tasks import write_toy_tasks

ROWS, ROWS_PER_SHARD = 300, 4
TASK = "opinion"
LIMIT_S = 1200  # after which a command counts as hung
RAY: dict[str, Any] = {"ray": "local", "ray_workers": 2}
CHANCE = np.random.default_rng(1)
WHEN_MADE = {"distill.json", "README.md"}  # files that say it


def prepare(folder: Path) -> None:
    """The demo's task and an untrained teacher for it."""
    sentences = write_toy_tasks(folder, ROWS, 40)
    create_tiny_bert(folder / "bert", sentences, hidden_size=32, num_layers=1)
    task = load_task(manifest=folder / f"{TASK}.yaml")
    torch.manual_seed(1)
    teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")


def command(folder: Path, store: str, **changes: Any) -> list[str]:
    """A dump in many small shards."""
    config = DumpSettings.from_flags(
        manifest=folder / f"{TASK}.yaml",
        data=folder / "data",
        model_name_or_path=str(folder / "teacher"),
        max_seq_length=32,
        rows_per_shard=ROWS_PER_SHARD,
        token_vectors=False,
        keep="states=1:pca-8",
        store=folder / store,
        **changes,
    )
    return ["teacher-dump", *as_flags(config)]


def num_files(folder: Path, store: str) -> int:
    """How many shards of rows and of states are there."""
    return len(list((folder / store / TASK).glob("*/*.parquet")))


class Hung(Exception):
    """A command has not ended in time."""


def wait_for(is_time: Callable[[], bool], process: Forked | None = None) -> None:
    """Waits until something is so, or a process has ended."""
    until = time.monotonic() + LIMIT_S
    while not is_time() and (process is None or process.poll() is None):
        if time.monotonic() > until:
            raise Hung
        time.sleep(0.02)


def end_of(process: Forked) -> int:
    """The exit code of a process that ends by itself."""
    wait_for(lambda: False, process)
    assert process.returncode is not None
    return process.returncode


def run(folder: Path, store: str, **changes: Any) -> None:
    """A dump that must succeed."""
    assert end_of(distill(*command(folder, store, **changes))) == 0, changes


def descendants(process: int) -> dict[int, str]:
    """The processes that a process has started, directly or not, by what they call themselves."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
        except (OSError, ValueError):
            continue

    def is_below(child: int | None) -> bool:
        return child is not None and (child == process or is_below(parents.get(child)))

    return {child: name for child, name in names.items() if child != process and is_below(child)}


def kill_worker(driver: int) -> bool:
    """Kills a worker with a shard in hand, if there is one."""
    workers = [pid for pid, name in descendants(driver).items() if name.startswith("ray::_Actor.do")]
    if workers:
        os.kill(CHANCE.choice(workers), signal.SIGKILL)
    return bool(workers)


def are_gone(processes: dict[int, str]) -> bool:
    """Whether none of the processes is there any more."""
    return not any(is_alive(pid, name) for pid, name in processes.items())


def is_alive(process: int, name: str) -> bool:
    """Whether a process is still the one that it was, or the worker that it has become."""
    try:
        now = (Path("/proc") / str(process) / "cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return False
    return bool(now) and now.split("::")[0] == name.split("::")[0]


def kill_workers(folder: Path, store: str, kills: int, **changes: Any) -> int:
    """Writes a set while workers are killed at random moments; how many were."""
    process, killed, seen = distill(*command(folder, store, **RAY, **changes)), 0, -1

    def kill() -> bool:
        nonlocal killed, seen
        there = num_files(folder, store)
        if there > seen and killed < kills and kill_worker(process.pid):
            killed, seen = killed + 1, there  # not again before another file was written
            time.sleep(CHANCE.uniform())
        return False

    wait_for(kill, process)
    assert process.returncode == 0
    return killed


def stop_drivers(folder: Path, store: str, times: int, stop: Callable[[Forked], None]) -> int:
    """Stops a driver at random numbers of files, again and again, then finishes by a job and without Ray; how often."""
    stopped = 0
    for files in np.sort(CHANCE.choice(2 * ROWS // ROWS_PER_SHARD, times, replace=False)):
        process = distill(*command(folder, store, **RAY))
        wait_for(lambda files=files: num_files(folder, store) >= files, process)  # type: ignore[misc]
        below = {pid: name for pid, name in descendants(process.pid).items() if "Actor" in name or "raylet" in name}
        if process.poll() is None:
            stop(process)
            stopped += 1
        wait_for(partial(are_gone, below))
    run(folder, store, shard_index=0, num_shards=2)
    run(folder, store)
    return stopped


def kill(process: Forked) -> None:
    """SIGKILL."""
    process.kill()
    end_of(process)


def terminate_twice(process: Forked) -> None:
    """SIGTERM while shards are in hand, and another one, which must end it at once."""
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.05)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
    assert end_of(process) == 143


def mix(folder: Path, store: str) -> int:
    """A job, two processes of Accelerate and Ray's workers, the first two at once, then a single process; the kinds."""
    flags = command(folder, store, shard_index=1, num_shards=4)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m", "distill"]
    accelerate = subprocess.Popen([*launch, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run(folder, store, shard_index=0, num_shards=4)
    assert accelerate.wait(LIMIT_S) == 0
    run(folder, store, shard_index=2, num_shards=4, ray_write="workers", **RAY)
    before = num_files(folder, store)
    run(folder, store)
    assert before < num_files(folder, store)
    return 4


def remove_machine(folder: Path, store: str) -> int:
    """Takes the machine with all workers away once some files are there, and gives the cluster another."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    machine = cluster.add_node(num_cpus=1)
    process = distill(*command(folder, store, ray=cluster.address, ray_workers=1))
    wait_for(lambda: num_files(folder, store) >= 20, process)
    cluster.remove_node(machine, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    try:
        assert end_of(process) == 0
    finally:
        cluster.shutdown()
    return 1


def contents(root: Path) -> dict[str, str]:
    """The contents of a set: SHA-256 of its files, and their entries in its record."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    hashes = {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items() if name not in WHEN_MADE}
    record = read_set_record(root)
    return hashes | {"record": repr((record.state, record.fingerprint, record.shards, record.signals, record.scores))}


def told(what: str, act: Callable[[Path, str], int], folder: Path, expected: dict[str, str]) -> list[object]:
    """A line of the table: how often something was done, and what was lost, is there twice, or has hung."""
    store, hung, times = what.replace(" ", "-"), 0, 0
    try:
        times = act(folder, store)
    except Hung:
        hung = 1
    there = contents(folder / store / TASK)
    lost = sum(there.get(name) != content for name, content in expected.items())
    temporaries = sum(len(list((folder / store).rglob(pattern))) for pattern in TEMPORARIES)
    line = [what, times, lost, len(there.keys() - expected.keys()), temporaries, hung]
    console.note(" ".join(map(str, line)))
    return line


def main() -> None:
    """Prints how often what was killed, and what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    drivers = arguments.kills // 5
    workers = arguments.kills - drivers
    acts: dict[str, Callable[[Path, str], int]] = {
        "workers killed, the driver writes": partial(kill_workers, kills=workers - workers // 2),
        "workers killed, workers write": partial(kill_workers, kills=workers // 2, ray_write="workers"),
        "drivers killed": partial(stop_drivers, times=drivers, stop=kill),
        "drivers given two SIGTERM": partial(stop_drivers, times=drivers, stop=terminate_twice),
        "machines removed": remove_machine,
        "kinds mixed": mix,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        run(folder, "plain")
        expected = contents(folder / "plain" / TASK)
        rows = [told(what, act, folder, expected) for what, act in acts.items()]
        files = f"of {len(expected)} files lost"
        console.print_table(["", "times", files, "files too many", "temporaries left", "hung"], rows)


if __name__ == "__main__":
    main()
