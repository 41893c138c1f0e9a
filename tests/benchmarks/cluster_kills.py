"""Kills workers, drivers and a machine of a Ray cluster by SIGKILL while they write a set, and compares every byte.

``python -m tests.benchmarks.cluster_kills --kills 20``: two workers here, the demo's task, a tiny teacher; then a
"machine" of `ray.cluster_utils.Cluster` is removed while it works.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from pipeline import console
from pipeline.config import as_flags
from pipeline.demo.data import write_demo_data
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.config import DumpTask
from teacher.dump.examples import dump
from teacher.finetune.common import save_teacher
from teacher.inference.classifier import new_classifier
from teacher.tiny import create_tiny_bert

ROWS, ROWS_PER_SHARD = 600, 4
TASK = "opinion"


def prepare(folder: Path) -> None:
    """The demo's task and an untrained teacher for it."""
    sentences = write_demo_data(folder, ROWS, 40)
    create_tiny_bert(folder / "bert", sentences, hidden_size=32, num_layers=1)
    task = load_task(manifest=folder / f"{TASK}.yaml")
    torch.manual_seed(1)
    teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")


def config(folder: Path, store: str, **changes: Any) -> DumpTask:
    """Settings of a dump in many small shards."""
    fixed: dict[str, Any] = {
        "manifest": folder / f"{TASK}.yaml",
        "data": folder / "data",
        "model_name_or_path": str(folder / "teacher"),
        "max_seq_length": 32,
        "rows_per_shard": ROWS_PER_SHARD,
        "token_vectors": False,
        "store": folder / store,
    }
    return DumpTask.from_flags(**fixed | changes)


def hashes(folder: Path, store: str) -> dict[str, str]:
    """SHA-256 of every shard of a set that is there."""
    paths = sorted((folder / store / TASK / "examples").glob("*.parquet"))
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}


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


def worker_at_work(driver: int) -> int | None:
    """The process of a worker that has a shard in hand."""
    return next((pid for pid, name in descendants(driver).items() if name.startswith("ray::_Actor.do")), None)


def kill_worker(driver: int) -> bool:
    """Kills a worker with a shard in hand, if there is one."""
    worker = worker_at_work(driver)
    if worker is not None:
        os.kill(worker, signal.SIGKILL)
    return worker is not None


def kill_workers(folder: Path, store: str, kills: int) -> int:
    """Writes a set in this process while workers are killed; how many were."""
    done = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        seen = -1
        while not done.is_set() and killed < kills:
            there = len(hashes(folder, store))
            if there > seen and kill_worker(os.getpid()):
                killed, seen = killed + 1, there  # not again before another shard was written
            time.sleep(0.2)

    thread = threading.Thread(target=kill)
    thread.start()
    dump(config(folder, store, ray="local", ray_workers=2), "ray")
    done.set()
    thread.join()
    return killed


def kill_drivers(folder: Path, store: str, at: list[int]) -> int:
    """Kills the driver once so many shards are there, again and again; then finishes with a job and without Ray."""
    flags = as_flags(config(folder, store, ray="local", ray_workers=2))
    for shards in at:
        command = [sys.executable, "-m", "pipeline", "teacher-dump", *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(partial(has_shards, folder, store, shards), process)
        below = {pid: name for pid, name in descendants(process.pid).items() if "Actor" in name or "raylet" in name}
        process.kill()
        process.wait()
        wait_for(partial(are_gone, below))
    dump(config(folder, store, shard_index=0, num_shards=2), "job")
    dump(config(folder, store), "plain")
    return len(at)


def has_shards(folder: Path, store: str, shards: int) -> bool:
    """Whether so many shards are there."""
    return len(hashes(folder, store)) >= shards


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


def wait_for(is_time: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until something is so, or a process has ended."""
    while not is_time() and (process is None or process.poll() is None):
        time.sleep(0.02)


def remove_machine(folder: Path, store: str) -> None:
    """Takes the machine with all workers away once some shards are there, and gives the cluster another."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    machine = cluster.add_node(num_cpus=1)

    def swap() -> None:
        wait_for(partial(has_shards, folder, store, 20))
        cluster.remove_node(machine, allow_graceful=False)
        cluster.add_node(num_cpus=1)

    thread = threading.Thread(target=swap)
    thread.start()
    dump(config(folder, store, ray=cluster.address, ray_workers=1), "ray")
    thread.join()
    cluster.shutdown()


def main() -> None:
    """Prints how often what was killed, and whether all bytes are those of a single process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        dump(config(folder, "plain"), "plain")
        expected = hashes(folder, "plain")
        rows = []
        workers = kill_workers(folder, "workers", arguments.kills)
        rows.append(["workers killed", workers, hashes(folder, "workers") == expected])
        drivers = kill_drivers(folder, "drivers", [5, 40, 90])
        rows.append(["drivers killed", drivers, hashes(folder, "drivers") == expected])
        remove_machine(folder, "machine")
        rows.append(["machines removed", 1, hashes(folder, "machine") == expected])
        console.print_table(["", "times", f"the same {len(expected)} files"], rows)


if __name__ == "__main__":
    main()
