"""Drift of the inputs of a served student, as metrics: see `pipeline.tasks.text_drift`.

Shapes: W workers, K bins of all signals.
"""

import mmap
from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.arrays import Floats
from pipeline.tasks.text_drift import Drift, InputProfile, answer_signals, drifts
from student.predict.predictor import Predictor

AT_ONCE = 256  # inputs that are counted together, because counting one takes as long as predicting it
RECENT = 10_000  # inputs of a worker after which older ones count half
METRICS = {
    "distill_drift_psi": "psi",
    "distill_drift_limit": "limit",
    "distill_drift_inputs": "num_inputs",
}


class RecentInputs:
    """Counts of recent inputs by bin, in memory that all workers share. Each worker writes its own row.

    Args:
        name: of the student.
        predictor: of the student.
        profile: of its inputs.
        workers: W, the number of processes that this one will fork.
    """

    def __init__(self, name: str, predictor: Predictor, profile: InputProfile, workers: int) -> None:
        self.name, self._predictor, self._profile = name, predictor, profile
        sizes = [len(one.counts) for one in profile.signals.values()]
        self._ends = np.cumsum(sizes)[:-1]
        self._shared = mmap.mmap(-1, workers * sum(sizes) * 8)
        self._counts_WK = np.frombuffer(self._shared, dtype=np.float64).reshape(workers, sum(sizes))
        self._first: list[str] = []
        self._second: list[str] = []
        self._logits: list[Floats] = []
        self.of_worker(0)

    def of_worker(self, worker: int) -> None:
        """Sets the number of this worker process."""
        self._mine_K, self._num_mine = self._counts_WK[worker], 0
        self._mine_K[:] = 0

    def add(self, first: Sequence[str], second: Sequence[str] | None, logits_NC: Floats | None = None) -> None:
        """Counts inputs with their calibrated logits, sooner or later. Logits of words are not counted."""
        self._first += first
        self._second += second or ()
        self._logits += [] if logits_NC is None else [logits_NC]
        if len(self._first) >= AT_ONCE:
            self._count()

    def _count(self) -> None:
        signals = self._predictor.backend.text_signals(self._first, self._second or None)
        if self._logits:
            signals |= answer_signals(self._predictor.info.target, np.concatenate(self._logits))
        counts = self._profile.counts(signals)
        if self._num_mine >= RECENT:
            # Half of the old counts stay, so that a change shows soon and the counts never begin anew at 0.
            self._mine_K /= 2
            self._num_mine //= 2
        self._mine_K += np.concatenate([counts[name] for name in self._profile.signals])
        self._num_mine += len(self._first)
        self._first, self._second, self._logits = [], [], []

    def drift(self) -> list[Drift]:
        """How far the recent inputs of all workers differ."""
        parts = np.split(self._counts_WK.sum(axis=0), self._ends)
        return drifts(self._profile, dict(zip(self._profile.signals, parts, strict=True)))


def drift_text(watched: Iterable[RecentInputs]) -> str:
    """The drift of students in Prometheus' text format."""
    found = [(one.name, drift) for one in watched for drift in one.drift()]
    lines = []
    for metric, attribute in METRICS.items() if found else ():
        lines.append(f"# TYPE {metric} gauge")
        lines += [
            f'{metric}{{run="{_escaped(name)}",signal="{drift.signal}"}} {getattr(drift, attribute):g}'
            for name, drift in found
        ]
    return "".join(f"{line}\n" for line in lines)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
