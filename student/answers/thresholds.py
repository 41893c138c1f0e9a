"""From which probability on a label holds, of tasks whose labels hold or not, each by itself.

Thresholds are stored as probabilities and used as logits: a label holds where its logit is above. Shapes: N rows, C
labels.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError, short
from pipeline.record_file import read_record, with_checksum
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.training.run_record import RUN_RECORD, read_run_record

THRESHOLDS_FILE = "thresholds.json"  # of a student that was saved without the record of its run
MOST_LOGIT = 30.0  # beyond, a probability is as good as 0 or 1


def best_thresholds(target: Target, logits_NC: Floats, label_NC: Ints) -> dict[str, float]:
    """The probability of each label above which its F1 is best on some rows; 0.5 where no row has the label.

    Args:
        target: names the labels.
        logits_NC: float32, what a student says.
        label_NC: their gold, rows of ``NO_LABEL`` where there is none.
    """
    known_N = label_NC[:, 0] != NO_LABEL
    pairs = zip(target.names, logits_NC[known_N].T, label_NC[known_N].T, strict=True)
    return {name: 1 / (1 + float(np.exp(-_best_cut(logit_N, gold_N)))) for name, logit_N, gold_N in pairs}


def _best_cut(logit_N: Floats, gold_N: Ints) -> float:
    """The logit half-way between two rows above which F1 is best; of equally good ones the nearest to 0."""
    if not gold_N.any():
        return 0.0
    order_N = np.argsort(-logit_N, kind="stable")
    sorted_N = logit_N[order_N].astype(np.float64)
    right_N, said_N = np.cumsum(gold_N[order_N]), np.arange(1, len(gold_N) + 1)
    f1_N = 2 * right_N / (said_N + gold_N.sum())
    cut_N = (sorted_N + np.append(sorted_N[1:], sorted_N[-1] - 1)) / 2
    f1_N[:-1][np.diff(sorted_N) == 0] = -1  # of equal logits all or none
    best = np.flatnonzero(f1_N == f1_N.max())
    return float(np.clip(np.nan_to_num(cut_N[best[np.abs(cut_N[best]).argmin()]]), -MOST_LOGIT, MOST_LOGIT))


def stored_thresholds(folder: Path) -> dict[str, float]:
    """The thresholds of a student by label: of its run's record, or of the file beside it; empty if there are none.

    Raises:
        IntegrityError: if what holds them is damaged.
    """
    path, stored = folder / RUN_RECORD, {}
    if path.exists():
        stored = read_run_record(path).get("result", {}).get("thresholds", {})
    if not stored and (folder / THRESHOLDS_FILE).exists():
        path = folder / THRESHOLDS_FILE
        stored = read_record(path)
    if not isinstance(stored, dict) or not all(isinstance(p, float) and 0 < p < 1 for p in stored.values()):
        raise IntegrityError(f"{path}: thresholds: {short(stored)} are not probabilities by label")
    return stored


def thresholds_file(folder: Path) -> dict[str, bytes]:
    """The file that goes with a student when it is saved elsewhere, by its name; none if it has no thresholds."""
    stored = stored_thresholds(folder)
    return {THRESHOLDS_FILE: with_checksum(json.dumps(stored, indent=2)).encode()} if stored else {}


def as_logits(thresholds: Mapping[str, float], target: Target) -> Floats:
    """Thresholds by label as logits [C]; 0 of a label that has none."""
    p_C = np.array([thresholds.get(name, 0.5) for name in target.names])
    return np.asarray(np.log(p_C) - np.log1p(-p_C), dtype=np.float32)
