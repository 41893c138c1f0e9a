"""One step on the task in a folder, in a process of its own: python -m tests.benchmarks.growth.steps STEP FOLDER.

Prints ``seconds`` and ``bytes`` as JSON: by how much its memory at its peak was above that of the imported libraries.
Linux tells the peak of this process since it was asked to forget it; ``ru_maxrss`` may be that of the parent.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.query.catalog import build_catalog, open_catalog
from pipeline.sets.record import read_set_record
from pipeline.sets.set_settings import PushSettings
from pipeline.sets.verify import verify_shards
from pipeline.sharing.push import push
from pipeline.sql.read_only_query import select
from student.settings import TrainSettings
from student.train import train
from student.training_data import load_data
from teacher.dumps import dump
from teacher.finetune.classifier import finetune
from teacher.finetune_settings import FinetuneSettings
from teacher.settings import DumpSettings

COMMAND = "python -m tests.benchmarks.growth"
FORGET_THE_PEAK = "5"  # see proc_pid_clear_refs(5)


def _task(folder: Path) -> dict[str, object]:
    return {"manifest": folder / "growth.yaml", "data": folder / "data", "max_seq_length": 32}


def _dump(folder: Path) -> None:
    places = {"model_name_or_path": str(folder / "teacher"), "store": folder / "store"}
    # its label order is random, and told to be right
    dump(DumpSettings.from_flags(**_task(folder), **places, teacher_labels="no,yes"), COMMAND)


def _finetune(folder: Path) -> None:
    places = {"model_name_or_path": str(folder / "bert"), "output_dir": folder / "finetuned"}
    settings = {"num_train_epochs": 1, "per_device_train_batch_size": 256}
    finetune(FinetuneSettings.from_flags(**_task(folder), **places, **settings), COMMAND)


def _verify(folder: Path) -> None:
    verify_shards(folder / "store/growth", read_set_record(folder / "store/growth"))


def _push(folder: Path) -> None:
    push(PushSettings.from_flags(set="growth", store=folder / "store", url=str(folder / "pushed")))


def _sql(query: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with open_catalog(folder / "store") as connection:
            select(connection, query).fetchall()

    return run


def _training(folder: Path) -> TrainSettings:
    places = {"task": "growth", "store": folder / "store", "output_dir": folder / "run"}
    return TrainSettings.from_flags(**places, num_train_epochs=1, per_device_train_batch_size=256)


STEPS: dict[str, Callable[[Path], object]] = {
    "dump": _dump,
    "verify": _verify,
    "push": _push,
    "index": lambda folder: build_catalog(folder / "store"),
    "SQL, one row by its key": _sql("select logits from growth where split = 'train' and source_row = 777"),
    "SQL, mean entropy by label": _sql("select label, avg(entropy(logits)) from growth group by all"),
    "SQL, the ten hardest rows": _sql("from hardest(growth) limit 10"),
    "load": lambda folder: load_data(_training(folder)),
    "train": lambda folder: train(_training(folder), COMMAND),
    "finetune": _finetune,
}


def main() -> None:
    """Runs a step."""
    step, folder = STEPS[sys.argv[1]], Path(sys.argv[2])
    Path("/proc/self/clear_refs").write_text(FORGET_THE_PEAK)
    imported = _memory("VmRSS")
    start = time.perf_counter()
    step(folder)
    seconds = time.perf_counter() - start
    sys.stdout.write(json.dumps({"seconds": round(seconds, 3), "bytes": _memory("VmHWM") - imported}) + "\n")


def _memory(name: str) -> int:
    """Bytes that this process has (``VmRSS``) or had at its peak (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
