"""Metrics for Prometheus with text-embeddings-inference's names, summed over all workers.

The format is written by hand, because `prometheus_client` appends ``_total`` to names of counters, and theirs lack it.

Shapes: W workers, M numbers.
"""

import mmap
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from student.cascade.cascade_settings import MOST_STAGES

KINDS = ("Backend", "Empty", "Overloaded", "Validation")
STAGES = [f'{{stage="{number}"}}' for number in range(MOST_STAGES)]  # of a cascade, from the first one, 0

COUNTERS = {
    "te_request_count": [f'{{method="{method}"}}' for method in ("single", "batch")],
    "te_request_success": [f'{{method="{method}"}}' for method in ("single", "batch")],
    "te_request_failure": [f'{{err="{kind.lower()}"}}' for kind in KINDS],
    "distill_stage_answers": STAGES,
    "distill_stage_failures": STAGES,
}
GAUGE = "te_queue_size"
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
SIZES = tuple(float(2**k) for k in range(14))
HISTOGRAMS = {"te_request_duration": SECONDS, "te_request_inference_duration": SECONDS, "te_batch_next_size": SIZES}


class Metrics:
    """Numbers in memory that all workers share. Each worker writes its own row.

    Args:
        workers: W, the number of processes that this one will fork.
    """

    def __init__(self, workers: int) -> None:
        columns = [GAUGE, *(name + labels for name, several in COUNTERS.items() for labels in several)]
        columns += [sample for name, bounds in HISTOGRAMS.items() for sample in _samples(name, bounds)]
        self._columns = {name: number for number, name in enumerate(columns)}
        # Anonymous shared memory survives the fork. Each worker writes only its own row, so no lock is needed.
        self._shared = mmap.mmap(-1, workers * len(columns) * 8)
        self._numbers_WM = np.frombuffer(self._shared, dtype=np.float64).reshape(workers, len(columns))
        self._mine_M = self._numbers_WM[0]

    def of_worker(self, worker: int) -> None:
        """Sets the number of this worker process, whose queue is empty at first."""
        self._mine_M = self._numbers_WM[worker]
        self._mine_M[self._columns[GAUGE]] = 0

    def add(self, name: str, value: float = 1) -> None:
        """Adds to a counter or to the gauge. The name of a counter includes its label."""
        self._mine_M[self._columns[name]] += value

    def observe(self, name: str, value: float) -> None:
        """Adds a value to a histogram."""
        bounds = HISTOGRAMS[name]
        bucket = bisect_left(bounds, value)  # Prometheus's bounds are inclusive
        self.add(f"{name}_sum", value)
        self.add(_bucket(name, f"{bounds[bucket]:g}" if bucket < len(bounds) else "+Inf"))

    def text(self) -> str:
        """Everything in Prometheus' text format, version 0.0.4."""
        totals = dict(zip(self._columns, self._numbers_WM.sum(axis=0).tolist(), strict=True))
        lines = [f"# TYPE {GAUGE} gauge", f"{GAUGE} {totals[GAUGE]:g}"]
        for name, several in COUNTERS.items():
            lines += [f"# TYPE {name} counter", *(f"{name}{labels} {totals[name + labels]:.0f}" for labels in several)]
        for name, bounds in HISTOGRAMS.items():
            *buckets, total = _samples(name, bounds)
            # Prometheus's buckets are cumulative. Summing here keeps `observe` at two additions.
            counts = np.cumsum([totals[bucket] for bucket in buckets])
            lines.append(f"# TYPE {name} histogram")
            lines += [f"{bucket} {count:.0f}" for bucket, count in zip(buckets, counts, strict=True)]
            lines += [f"{total} {totals[total]!r}", f"{name}_count {counts[-1]:.0f}"]
        return "\n".join(lines) + "\n"


def _samples(name: str, bounds: Sequence[float]) -> list[str]:
    return [*(_bucket(name, f"{bound:g}") for bound in bounds), _bucket(name, "+Inf"), f"{name}_sum"]


def _bucket(name: str, bound: str) -> str:
    return f'{name}_bucket{{le="{bound}"}}'
