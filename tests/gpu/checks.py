"""What a GPU has to prove: the numbers of the CPU within bounds, and no row lost.

A check returns what it measured and the bound that this must not exceed, or raises.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.gpu.dumps import CASES, HALF, MEMORY, set_name
from tests.gpu.dumps import main as dump_case
from tests.helpers.forked import Forked

# Of the spread of the CPU's numbers. fp32 differs by the order of sums, the others by their rounding.
BOUNDS = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.1}
LAST_BIT = 4e-3  # of float16 columns: log-probabilities of -8 to -16 are 1/128 apart, and spread over 4 or more
DUMP_SECONDS = 300


class Measured(NamedTuple):
    """What a check found.

    Attributes:
        value: is to be at most `bound`.
        bound: None where the value is only reported.
        unit: of both.
    """

    value: float
    bound: float | None
    unit: str


Check = Callable[[], Measured]


class Dumps:
    """Dumps of the cases on a device.

    Args:
        folder: the world.
        device: ``cuda`` or ``cpu``.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        self.locks = {name: Lock() for name in CASES}

    def start(self, device: str, store: Path, name: str, environment: dict[str, str], **flags: Any) -> Any:
        """A process that dumps a case."""
        command = [sys.executable, "-m", "tests.gpu.dumps", str(self.folder), str(store), name, json.dumps(flags)]
        everything = environment_on(device) | environment
        if self.device == "cpu":  # The checks themselves are tried. Forked processes start at once.
            return Forked(partial(dump_case, *command[3:]), environment=everything)
        return subprocess.Popen(command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, device: str, store: Path, name: str, environment: dict[str, str] | None = None, **flags: Any) -> str:
        """Dumps a case; returns what the process printed."""
        process = self.start(device, store, name, environment or {}, **flags)
        printed, _ = process.communicate(timeout=DUMP_SECONDS)
        if process.returncode:
            raise RuntimeError(f"the dump failed: {printed[-2000:]}")
        return str(printed)

    def expected(self, name: str) -> Path:
        """The store of the CPU's dump of a case in float32, which is made once."""
        store = self.folder / "cpu"
        with self.locks[name]:
            if not (store / set_name(name) / "distill.json").exists():
                self.run("cpu", store, name)
        return store

    def agrees(self, name: str, precision: str) -> Measured:
        """Compares the device's numbers with the CPU's."""
        store = self.folder / f"device-{precision}"
        self.run(self.device, store, name, precision=precision)
        bound = max(BOUNDS[precision], LAST_BIT if HALF in CASES[name].columns.values() else 0)
        return Measured(distance(self.expected(name), store, name), bound, "of the spread")

    def survives_a_kill(self, name: str) -> Measured:
        """Kills a dump once it has written a shard, and repeats it."""
        store = self.folder / "killed"
        process = self.start(self.device, store, name, {}, rows_per_shard=5)
        until = time.monotonic() + DUMP_SECONDS
        while not list((store / set_name(name)).glob("**/*.parquet")) and process.poll() is None:
            if time.monotonic() > until:
                raise RuntimeError("the dump wrote no shard")
            time.sleep(0.01)
        process.kill()
        process.communicate()
        self.run(self.device, store, name, rows_per_shard=5)
        return Measured(distance(self.expected(name), store, name), BOUNDS["fp32"], "of the spread")

    def shares_the_device(self, name: str) -> Measured:
        """Dumps a case by two processes at once."""
        store = self.folder / "two"
        jobs = [self.start(self.device, store, name, {}, num_shards=2, shard_index=str(k)) for k in range(2)]
        printed = [job.communicate(timeout=DUMP_SECONDS)[0] for job in jobs]
        if any(job.returncode for job in jobs):
            raise RuntimeError(f"a job failed: {printed}")
        return Measured(distance(self.expected(name), store, name), BOUNDS["fp32"], "of the spread")

    def halves_its_batches(self, name: str) -> Measured:
        """Dumps a case in batches that are too large for a share of the memory."""
        store, little = self.folder / "little", {MEMORY: "0.02"}
        printed = self.run(self.device, store, name, little, max_tokens_per_batch=10**7)
        if "memory" not in printed:
            raise RuntimeError("no batch was too large; the check needs a smaller share of the memory")
        return Measured(distance(self.expected(name), store, name), BOUNDS["fp32"], "of the spread")

    def rate(self, name: str) -> Measured:
        """Measures rows per second, from the start of the process to the end of the dump."""
        store = self.folder / "rate"
        start = time.monotonic()
        self.run(self.device, store, name)
        rows = sum(pq.read_metadata(path).num_rows for path in (store / set_name(name)).glob("**/*.parquet"))
        return Measured(rows / (time.monotonic() - start), None, "rows/s")


def environment_on(device: str) -> dict[str, str]:
    """The environment of a process on a device, without the hub."""
    return os.environ | {"HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


def distance(expected: Path, actual: Path, name: str) -> float:
    """The largest difference of a number, as a share of the spread of the expected ones.

    Raises:
        RuntimeError: if the sets have other rows.
    """
    worst = 0.0
    for column, dtype in (CASES[name].columns or {"ids": "uint16"}).items():
        here, there = (numbers(store / set_name(name), column, dtype) for store in (expected, actual))
        if here.shape != there.shape or not len(here):
            raise RuntimeError(f"{column}: {len(here):,} numbers expected, {len(there):,} found")
        worst = max(worst, float(np.abs(here - there).max() / max(np.ptp(here), 1e-6)))
    return worst


def numbers(folder: Path, column: str, dtype: str) -> np.ndarray:
    """All numbers of a column, in the order of the keys."""
    parts = []
    for path in sorted(folder.glob("**/*.parquet")):
        if column not in pq.read_schema(path).names:
            continue
        flat = pq.read_table(path, columns=[column]).column(column).combine_chunks()
        while hasattr(flat, "values"):
            flat = pc.list_flatten(flat)
        parts.append(flat.to_numpy(zero_copy_only=False))
    if not parts:
        raise RuntimeError(f"{folder.name} has no column {column}")
    bits = np.concatenate(parts)
    return (bits.view(np.float16) if dtype == "float16" and bits.dtype == np.uint16 else bits).astype(np.float64)


def checks(folder: Path, device: str, is_short: bool) -> Iterator[tuple[str, Check]]:
    """Yields the checks by name.

    Args:
        folder: the world.
        device: ``cuda`` or ``cpu``.
        is_short: whether one case and float32 are enough, as in the test suite.
    """
    dumps = Dumps(folder, device)
    for name in ["pairs"] if is_short else CASES:
        for precision in ["fp32"] if is_short or not CASES[name].columns else BOUNDS:
            yield f"{name}: {precision} agrees with the CPU", partial(dumps.agrees, name, precision)
    yield "pairs: killed and repeated", partial(dumps.survives_a_kill, "pairs")
    if is_short:
        return
    yield "pairs: two processes on one device", partial(dumps.shares_the_device, "pairs")
    if device == "cuda":
        yield "pairs: too large batches are halved", partial(dumps.halves_its_batches, "pairs")
