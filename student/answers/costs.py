"""What is added to a student's logits before labels are chosen: thresholds of labels, and what it costs to miss one.

The label that costs least in the mean is the one whose probability times its cost is largest; of a label apart, yes
costs less than no where the odds times the cost are above those of its threshold. Both add log(cost) to the logit.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, did_you_mean
from pipeline.tasks.target import Target
from student.answers.thresholds import as_logits, stored_thresholds


def label_bias(run: Path, target: Target, costs: Mapping[str, float]) -> Floats | None:
    """What is added to the logits [C]; None for nothing.

    Args:
        run: whose thresholds are taken, of a multi-label student.
        target: names the labels.
        costs: of missing a label, 1 for those that are not named.

    Raises:
        ConfigError: for an unknown label, a cost that is not above 0, or a student without labels.
        IntegrityError: if the run's thresholds are damaged.
    """
    if costs and not target.has_labels:
        raise ConfigError("--cost: this student gives scores and chooses no label")
    for name, cost in costs.items():
        if name not in target.names:
            raise ConfigError(f"--cost: unknown label {name!r}: {did_you_mean(name, target.names)}")
        if not (0 < cost < math.inf):
            raise ConfigError(f"--cost {name}={cost:g}: a cost is a number above 0")
    if not costs and target.kind != "labels":
        return None
    log_C = np.log([costs.get(name, 1.0) for name in target.names]).astype(np.float32)
    return log_C - as_logits(stored_thresholds(run), target) if target.kind == "labels" else log_C


def read_costs(texts: Sequence[str]) -> dict[str, float]:
    """Costs by label, of texts like ``fraud=10``.

    Raises:
        ConfigError: for what is no such text, or a label that is there twice.
    """
    costs = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        try:
            cost = float(number)
        except ValueError:
            sign = ""
        if not sign or name in costs:
            raise ConfigError(f"--cost {text}: not LABEL=NUMBER, such as fraud=10, once for each label")
        costs[name] = cost
    return costs
