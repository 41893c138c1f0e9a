"""From which margin on each stage of a cascade answers: by proof, or by what answers cost.

Shapes: N rows, S stages but the last.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError
from student.predict.certificate import Trial, certify_margins

NEVER = 1.0  # no margin is above it
PERCENT = range(0, 101, 5)  # of its rows, that a stage may answer
MOST_COMBINATIONS = 200_000


@dataclass(frozen=True)
class Answered:
    """What the stages answered to rows.

    Attributes:
        margin_SN: of each stage but the last, float32.
        label_SN: of each stage, the last included, int64.
    """

    margin_SN: Floats
    label_SN: Ints

    def taken(self, rows: Ints) -> "Answered":
        """Some of the rows."""
        return Answered(self.margin_SN[:, rows], self.label_SN[:, rows])

    def stage_N(self, thresholds: Sequence[float]) -> Ints:
        """Which stage answers each row."""
        stage_N = np.full(self.label_SN.shape[1], len(thresholds))
        # From the last to the first, so that the earliest stage that is sure has the last word.
        for number in reversed(range(len(thresholds))):
            stage_N[self.margin_SN[number] > thresholds[number]] = number
        return stage_N

    def label_N(self, thresholds: Sequence[float]) -> Ints:
        """The label that the cascade gives each row."""
        stage_N = self.stage_N(thresholds)
        return np.asarray(self.label_SN[stage_N, np.arange(len(stage_N))])


def certified_thresholds(
    answered: Answered, disagreement: float, confidence: float, seed: int = 0
) -> tuple[list[float], list[Trial | None]]:
    """The laxest thresholds at which at most a share of the answers differs from the last stage's.

    Each stage is certified on separate rows among those that reach it, because its threshold must not depend on rows
    that chose the previous one. With S stages, each bound fails with a chance of (1 - confidence) / S. All bounds
    therefore hold together with the requested confidence (Bonferroni), and so does their mean, the bound of the whole
    cascade.

    Args:
        answered: to rows that no stage was trained on.
        disagreement: greatest share of a stage's answers that may differ.
        confidence: with which that must hold.
        seed: of how rows are divided among the stages.

    Returns: The threshold of each stage but the last, or `NEVER` if nothing could be proved, and its trial, or None.
    """
    num_stages, num_rows = answered.margin_SN.shape
    parts = np.array_split(np.random.default_rng(seed).permutation(num_rows), num_stages)
    thresholds: list[float] = []
    trials: list[Trial | None] = []
    for number, rows in enumerate(parts):
        part = answered.taken(rows)
        reach_N = part.stage_N(thresholds) == number
        margin_N = part.margin_SN[number, reach_N]
        differs_N = (part.label_SN[number] != part.label_SN[-1])[reach_N]
        trial = None
        if len(margin_N):
            trial, _ = certify_margins(margin_N, differs_N, disagreement, 1 - (1 - confidence) / num_stages)
        trials.append(trial)
        thresholds.append(NEVER if trial is None else trial.threshold)
    return thresholds, trials


@dataclass(frozen=True)
class Choice:
    """Thresholds, the mean cost with them as a share of the last stage's cost, and the share of right answers."""

    thresholds: tuple[float, ...]
    cost: float
    accuracy: float


def frontier(answered: Answered, is_right_SN: Bools, cost_S: Sequence[float]) -> list[Choice]:
    """The thresholds that nothing beats: each costs more than the one before, and is right more often.

    Args:
        answered: to the rows.
        is_right_SN: which answers of each stage, the last included, count as right.
        cost_S: the cost of an answer of each stage, including the last.
    """
    grids = [_grid(margin_N) for margin_N in answered.margin_SN]
    while np.prod([len(grid) for grid in grids]) > MOST_COMBINATIONS:
        grids = [grid[::2] for grid in grids]
    columns = np.arange(answered.label_SN.shape[1])
    choices = []
    for thresholds in itertools.product(*grids):
        stage_N = answered.stage_N(thresholds)
        accuracy = float(is_right_SN[stage_N, columns].mean())
        choices.append(Choice(thresholds, mean_cost(stage_N, cost_S), accuracy))
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.cost, -one.accuracy)):
        if not best or choice.accuracy > best[-1].accuracy:
            best.append(choice)
    return best


def cheapest_thresholds(choices: Sequence[Choice], budget: float | None, target: float | None) -> list[float]:
    """The best thresholds within a budget, or the cheapest ones that reach an accuracy.

    Args:
        choices: of `frontier`.
        budget: greatest mean cost, as a share of the last stage's cost.
        target: the minimum accuracy, without a budget.

    Raises:
        ConfigError: if there are no such thresholds.
    """
    if budget is not None:
        within = [choice for choice in choices if choice.cost <= budget]
        if not within:
            raise ConfigError(f"--budget {budget:g}: the first stage alone costs {choices[0].cost:.3f} of the last")
        return list(within[-1].thresholds)
    for choice in choices:
        if target is None or choice.accuracy >= target:
            return list(choice.thresholds)
    raise ConfigError(f"--target-accuracy {target:g}: these stages reach {choices[-1].accuracy:.4f} at most")


def mean_cost(stage_N: Ints, cost_S: Sequence[float]) -> float:
    """The mean cost of inputs, as a share of the last stage's cost.

    Args:
        stage_N: which stage answers each input. It costs the sum over all stages up to that one.
        cost_S: the cost of an answer of each stage, including the last.
    """
    return float(np.cumsum(cost_S)[stage_N].mean() / cost_S[-1])


def _grid(margin_N: Floats) -> list[float]:
    """Thresholds at which a stage answers 0 %, 5 % … 100 % of rows."""
    levels = np.quantile(margin_N, [1 - percent / 100 for percent in PERCENT[1:-1]])
    return [NEVER, *map(float, dict.fromkeys(levels.tolist())), -1.0]
