"""Dumps of every kind of rows by one process: ``python -m tests.gpu.dumps FOLDER STORE NAMES FLAGS``."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from teacher.dumps import dump
from teacher.settings import DumpSettings
from tests.helpers.dumps import corpus_config, dump_config, vectors_config

MEMORY = "DISTILL_GPU_MEMORY"  # bytes of the GPU's memory that a dump may take
PEAK = "DISTILL_GPU_PEAK"  # a file for the most bytes that a dump reserved


class Case(NamedTuple):
    """A dump.

    Attributes:
        settings: makes its settings.
        flags: that differ from the usual ones of the tests.
        columns: the columns of numbers that are compared, and their types on disk.
    """

    settings: Callable[..., DumpSettings]
    flags: dict[str, Any]
    columns: dict[str, str]


HALF, FLOAT = "float16", "float32"
LAYERS = {"states": "0,1", "states_codec": "float32", "attention": "1", "attention_codec": "float32"}
CASES = {
    "sentences": Case(dump_config, {"task": "opinion"}, {"logits": FLOAT}),
    "pairs": Case(dump_config, {"task": "roles"}, {"logits": FLOAT}),
    "layers": Case(
        dump_config, {"task": "roles", **LAYERS}, {"logits": FLOAT, "states_1": FLOAT, "attention_1": FLOAT}
    ),
    "labelled words": Case(dump_config, {"task": "entities", "data": "."}, {"logits": FLOAT}),
    "vectors": Case(vectors_config, {"codec": "float16"}, {"vector": HALF}),
    "masked words, dense": Case(corpus_config, {"codec": "dense"}, {"log_probs": HALF, "log_z": FLOAT}),
    "masked words, hidden": Case(corpus_config, {"codec": "hidden"}, {"hidden": HALF}),
    "masked words, topk": Case(corpus_config, {"codec": "topk-10"}, {"log_z": FLOAT}),
    "masked words, sampled": Case(corpus_config, {"codec": "sampled"}, {}),
}


def settings_of(folder: Path, store: Path, name: str, flags: dict[str, Any]) -> DumpSettings:
    """The settings of a case, with more flags."""
    case = CASES[name]
    own = {key: value for key, value in case.flags.items() if key != "task"}
    place = (case.flags["task"],) if "task" in case.flags else ()
    own |= {"data": folder / own["data"]} if "data" in own else {}
    return case.settings(folder, *place, store, **own | {"name": set_name(name)} | flags)


def set_name(name: str) -> str:
    """The name of a case's set."""
    return name.replace(", ", "-").replace(" ", "-")


def main(folder: str, store: str, names: str, flags: str) -> None:
    """Dumps cases, whose names are separated by semicolons. One that fails does not hide the others."""
    if MEMORY in os.environ:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(int(os.environ[MEMORY]) / total)
    failed = False
    for name in names.split(";"):
        try:
            dump(settings_of(Path(folder), Path(store), name, json.loads(flags)), "tests.gpu")
        except Exception:  # noqa: BLE001  (printed, and the exit code says so)
            traceback.print_exc()
            failed = True
    if PEAK in os.environ:
        Path(os.environ[PEAK]).write_text(str(torch.cuda.max_memory_reserved()))
    sys.exit(int(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
