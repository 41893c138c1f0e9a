"""What a GPU has to prove: the numbers of the CPU within bounds, and no row lost.

A check returns what it measured and the bound that this must not exceed, or raises.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.gpu.dumps import CASES, HALF, MEMORY, PEAK, set_name
from tests.gpu.dumps import main as dump_cases
from tests.helpers.forked import Forked

# Of the spread of the CPU's numbers. fp32 differs by the order of sums, the others by their rounding.
BOUNDS = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.1}
LAST_BIT = 4e-3  # of float16 columns: log-probabilities of -8 to -16 are 1/128 apart, and spread over 4 or more
DUMP_SECONDS = 300
MANY_TOKENS = 10**7  # of a batch that holds all rows


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

    @property
    def is_good(self) -> bool:
        """Whether the check passes."""
        return self.bound is None or self.value <= self.bound


Check = Callable[[], Measured]


class Dumps:
    """Dumps of the cases on a device.

    Args:
        folder: the world.
        device: ``cuda`` or ``cpu``.
        names: of the cases.
    """

    def __init__(self, folder: Path, device: str, names: Sequence[str]) -> None:
        self.folder, self.device, self.names = folder, device, names
        self.locks = {store: Lock() for store in ("cpu-fp32", *(f"{device}-{precision}" for precision in BOUNDS))}
        self.printed: dict[str, str] = {}

    def start(self, device: str, store: Path, names: str, environment: dict[str, str], **flags: Any) -> Any:
        """A process that dumps cases."""
        command = [sys.executable, "-m", "tests.gpu.dumps", str(self.folder), str(store), names, json.dumps(flags)]
        everything = environment_on(device) | environment
        if self.device == "cpu":  # The checks themselves are tried. Forked processes start at once.
            return Forked(partial(dump_cases, *command[3:]), environment=everything)
        return subprocess.Popen(command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, store: Path, name: str, environment: dict[str, str] | None = None, **flags: Any) -> str:
        """Dumps a case on the device; returns what the process printed."""
        process = self.start(self.device, store, name, environment or {}, **flags)
        printed, _ = process.communicate(timeout=DUMP_SECONDS)
        if process.returncode:
            raise RuntimeError(f"the dump failed: {printed[-2000:]}")
        return str(printed)

    def made(self, device: str, precision: str, name: str) -> Path:
        """The store of all cases on a device, which one process makes: starting takes longer than dumping.

        Raises:
            RuntimeError: if this case is not among them.
        """
        key = f"{device}-{precision}"
        store = self.folder / key
        with self.locks[key]:
            if key not in self.printed:
                process = self.start(device, store, ";".join(self.names), {}, precision=precision)
                self.printed[key] = process.communicate(timeout=DUMP_SECONDS)[0]
        if not (store / set_name(name) / "distill.json").exists():
            raise RuntimeError(f"the dump failed: {self.printed[key][-2000:]}")
        return store

    def expected(self, name: str) -> Path:
        """The store of the CPU's dump of a case in float32."""
        return self.made("cpu", "fp32", name)

    def agrees(self, name: str, precision: str) -> Measured:
        """Compares the device's numbers with the CPU's."""
        store = self.made(self.device, precision, name)
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
        self.run(store, name, rows_per_shard=5)
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
        """Dumps a case with less memory than its batches need, and more than small ones do."""
        peaks = []
        for max_tokens in (64, MANY_TOKENS):
            path = self.folder / f"peak-{max_tokens}.txt"
            self.run(self.folder / path.stem, name, {PEAK: str(path)}, max_tokens_per_batch=max_tokens)
            peaks.append(int(path.read_text()))
        store, little = self.folder / "little", {MEMORY: str(sum(peaks) // 2)}
        printed = self.run(store, name, little, max_tokens_per_batch=MANY_TOKENS)
        if "memory" not in printed:
            raise RuntimeError(f"no batch was too large for {sum(peaks) // 2:,} bytes, between {peaks}")
        return Measured(distance(self.expected(name), store, name), BOUNDS["fp32"], "of the spread")

    def rate(self, name: str) -> Measured:
        """Measures rows per second, from the start of the process to the end of the dump."""
        store = self.folder / "rate"
        start = time.monotonic()
        self.run(store, name)
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
    names = ["pairs"] if is_short else list(CASES)
    dumps = Dumps(folder, device, names)
    # Those with processes of their own begin first; the others wait for the same few.
    yield "pairs: killed and repeated", partial(dumps.survives_a_kill, "pairs")
    if not is_short:
        yield "pairs: two processes on one device", partial(dumps.shares_the_device, "pairs")
    if device == "cuda":
        yield "pairs: too large batches are halved", partial(dumps.halves_its_batches, "pairs")
    for name in names:
        for precision in ["fp32"] if is_short or not CASES[name].columns else BOUNDS:
            yield f"{name}: {precision} agrees with the CPU", partial(dumps.agrees, name, precision)
