"""``distill cascade``: thresholds of stages from rows that none of them was trained on, and what the cascade is worth.

Shapes: N rows, S stages, C labels.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, raise_all
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ORIGINALS, ExampleSet, keys_sha256
from pipeline.sets.record import SetRecord
from pipeline.sets.signals.rows import logits_of
from pipeline.tasks.target import NO_LABEL, gold_arrays, margins
from pipeline.tasks.task import TRAIN
from student.cascade.cascade import Stage, StudentStage, open_stages
from student.cascade.cascade_file import (
    CascadeRecord,
    Measured,
    Score,
    StageRecord,
    StageScore,
    is_url,
    password_problems,
    write_cascade,
)
from student.cascade.cascade_settings import CascadeSettings
from student.cascade.choose_thresholds import (
    NEVER,
    Answered,
    Choice,
    certified_thresholds,
    cheapest_thresholds,
    frontier,
    mean_cost,
)
from student.evaluate import open_evaluated
from student.lessons.examples import ExampleLesson
from student.predict.certify import COLUMNS, not_trained_on, read_originals
from student.predict.open import open_backend
from student.texts import taken

TRIED = 64  # rows that show what an answer costs, and whether the last stage is the set's teacher
LEAST_AGREEMENT = 0.9  # of the last stage with the answers that the set holds of it
READ = (*COLUMNS, "label", "score", "logits")


@dataclass(frozen=True)
class Rows:
    """Rows of a set, and what its teacher answered.

    Attributes:
        first: the first sentences.
        second: the second sentences, or None.
        label_N: int64 gold classes, `NO_LABEL` without gold.
        teacher_NC: float32 logits.
    """

    first: list[str]
    second: list[str] | None
    label_N: Ints
    teacher_NC: Floats

    @classmethod
    def of(cls, table: pa.Table, record: SetRecord) -> "Rows":
        """Reads them from a table of a set with that record."""
        target = record.target
        second = table.column("sentence2").to_pylist() if record.is_pair else None
        label_N, _ = gold_arrays(target, table)
        return cls(table.column("sentence1").to_pylist(), second, label_N, logits_of(table, target.num_logits))

    def __len__(self) -> int:
        return len(self.first)

    def taken(self, rows: Sequence[int] | Ints) -> "Rows":
        """Some of them."""
        return Rows(*taken(self.first, self.second, rows), self.label_N[rows], self.teacher_NC[rows])


def create_cascade(config: CascadeSettings) -> CascadeRecord:
    """Chooses the thresholds of a cascade, measures it on dev rows, and writes its folder.

    Returns:
        The content of ``cascade.json``.

    Raises:
        ConfigError: if a stage is unusable, stages have different tasks, or no threshold reaches the request.
        DataError: if no row is left.
        FingerprintMismatchError: if the last stage is not the teacher of the set.
    """
    stages, names = _open(config)
    logit_set = _open_set(config, stages[0])
    rows, facts = _held_out(config, stages, logit_set)
    some = rows.taken(range(min(TRIED, len(rows))))
    # Each stage is tried before all rows are read, which may take a while.
    tried = [_tried(stage, some) for stage in stages]
    _check_last(stages[-1], tried[-1][0], some)
    costs = config.costs or [seconds for _, seconds in tried]
    answered = _ask(stages, rows)
    choices = frontier(answered, answered.label_SN == _right(config, answered, rows), costs)
    thresholds, chosen = _choose(config, answered, choices)
    splits = [split for split in logit_set.splits if split != TRAIN]
    measured = {split: _measured(stages, _dev(logit_set, split), thresholds, costs, choices) for split in splits}
    records = [
        StageRecord(source=name, threshold=threshold, cost=cost, hashes=stage.hashes())
        for name, stage, threshold, cost in zip(names, stages, [*thresholds, None], costs, strict=True)
    ]
    for split, found in measured.items():
        _warn_if_worse(split, found)
    record = CascadeRecord(stages=tuple(records), timeout=config.timeout, chosen=facts | chosen, measured=measured)
    write_cascade(config.output_dir, record)
    return record


def _warn_if_worse(split: str, found: Measured) -> None:
    """Warns of a stage that is right more often alone than the cascade is."""
    best = max(found.stages, key=lambda stage: stage.accuracy or 0)
    if (best.accuracy or 0) > (found.cascade.accuracy or 0):
        console.warn(
            f"{split}: the stage {best.stage} alone has an accuracy of {best.accuracy:.3f}, and the cascade "
            f"{found.cascade.accuracy:.3f}. Use that stage alone, or hand on more inputs."
        )


def _open(config: CascadeSettings) -> tuple[list[Stage], list[str]]:
    missing = [source for source in config.stage if not is_url(source) and not Path(source).exists()]
    problems = [f"--stage {source}: no such file or folder" for source in missing]
    raise_all(ConfigError, "stages", problems + password_problems(config.stage))
    names = [source if is_url(source) else str(Path(source).absolute()) for source in config.stage]
    return open_stages(names, config.timeout, open_backend), names


def _open_set(config: CascadeSettings, first: Stage) -> ExampleSet:
    path = Path(first.source) / RUN_RECORD
    if config.set is None and not path.is_file():
        raise ConfigError(f"--set: {first.source} has no record of its set. Name the set")
    record = read_work_record(path) if path.is_file() else {}
    return open_evaluated(ExampleLesson(), record, config.set, config.store, config.allow_unverified)


def _held_out(config: CascadeSettings, stages: Sequence[Stage], logit_set: ExampleSet) -> tuple[Rows, dict[str, Any]]:
    """The rows that choose, and what of them the record keeps."""
    table = read_originals(logit_set, READ, config.where)
    for stage in stages:
        run = Path(stage.source)
        if (run / RUN_RECORD).is_file() and table.num_rows:
            record, access = read_work_record(run / RUN_RECORD), (config.store, config.allow_unverified)
            table = table.filter(pa.array(not_trained_on(run, record, logit_set, table, config.where, *access)))
        elif isinstance(stage, StudentStage):
            console.warn(f"{stage.source}: has no record of its training, so its training rows cannot be left out")
    if not table.num_rows:
        raise DataError(f"--where {config.where!r}: no row of {logit_set.root} is left that is new to every stage")
    facts = {
        "logit_set": str(logit_set.root.resolve()),
        "logit_set_fingerprint": logit_set.record.fingerprint,
        "where": config.where,
        "rows": table.num_rows,
        "rows_sha256": keys_sha256(table),
    }
    return Rows.of(table, logit_set.record), facts


def _dev(logit_set: ExampleSet, split: str) -> Rows:
    return Rows.of(logit_set.read(split, READ, ORIGINALS), logit_set.record)


def _tried(stage: Stage, some: Rows) -> tuple[Floats, float]:
    """A stage's probabilities of some rows, and the seconds that each took."""
    stage.probabilities(some.first[:1], some.second and some.second[:1])  # loads what has to be loaded
    start = time.perf_counter()
    p_NC, reasons = stage.probabilities(some.first, some.second)
    seconds = time.perf_counter() - start
    if np.isnan(p_NC).all():
        raise DataError(f"--stage {stage.name}: gave none of {len(some)} rows a valid answer: {'; '.join(reasons)}")
    return p_NC, seconds / len(some)


def _check_last(stage: Stage, p_NC: Floats, some: Rows) -> None:
    """Refuses a last stage that is not the set's teacher, whose stored answers are used in its place."""
    if isinstance(stage, StudentStage):
        return
    has_answer_N = ~np.isnan(p_NC[:, 0])
    agreement = (p_NC.argmax(axis=1) == some.teacher_NC.argmax(axis=1))[has_answer_N].mean()
    if agreement < LEAST_AGREEMENT:
        raise FingerprintMismatchError(
            f"--stage {stage.name}: gives {agreement:.0%} of {has_answer_N.sum()} rows the label that the set holds, "
            "so it is not the teacher of this set. Name its set with --set"
        )


def _ask(stages: Sequence[Stage], rows: Rows) -> Answered:
    p_SNC = [stage.probabilities(rows.first, rows.second)[0] for stage in stages[:-1]]
    last_NC = rows.teacher_NC
    if isinstance(stages[-1], StudentStage):
        last_NC, _ = stages[-1].probabilities(rows.first, rows.second)
    label_SN = np.stack([p_NC.argmax(axis=1) for p_NC in (*p_SNC, last_NC)])
    return Answered(np.stack([margins(p_NC) for p_NC in p_SNC]), label_SN)


def _right(config: CascadeSettings, answered: Answered, rows: Rows) -> Ints:
    """The labels that count as right [N]: gold, and without it the last stage's."""
    has_gold_N = rows.label_N != NO_LABEL
    if not has_gold_N.all() and config.target_accuracy is not None:
        raise ConfigError("--target-accuracy: the rows have no gold. Choose others by --where, or give --budget")
    # Without gold the best that is known of an answer is whether the last stage gives it, too.
    return np.where(has_gold_N, rows.label_N, answered.label_SN[-1])


def _choose(
    config: CascadeSettings, answered: Answered, choices: Sequence[Choice]
) -> tuple[list[float], dict[str, Any]]:
    """The thresholds, and what they were chosen by."""
    if config.budget is not None or config.target_accuracy is not None:
        thresholds = cheapest_thresholds(choices, config.budget, config.target_accuracy)
        return thresholds, {"budget": config.budget, "target_accuracy": config.target_accuracy}
    thresholds, trials = certified_thresholds(answered, config.disagreement, config.confidence)
    for source, threshold in zip(config.stage, thresholds, strict=False):
        if threshold == NEVER:
            console.warn(f"--stage {source}: nothing could be proved of it, so it answers nothing")
    return thresholds, {
        "disagreement": config.disagreement,
        "confidence": config.confidence,
        "trials": [None if trial is None else trial.model_dump() for trial in trials],
    }


def _measured(
    stages: Sequence[Stage], rows: Rows, thresholds: Sequence[float], costs: Sequence[float], choices: Sequence[Choice]
) -> Measured:
    """What each stage alone is worth on rows, what the cascade is, and what it would be with other thresholds."""
    answered = _ask(stages, rows)
    has_gold_N = rows.label_N != NO_LABEL

    def scores(label_N: Ints) -> dict[str, float]:
        found = {"agreement": float((label_N == answered.label_SN[-1]).mean())}
        gold = (label_N == rows.label_N)[has_gold_N]
        return found | ({"accuracy": float(gold.mean())} if len(gold) else {})

    def whole(thresholds: Sequence[float]) -> Score:
        cost = mean_cost(answered.stage_N(thresholds), costs)
        return Score(cost=cost, **scores(answered.label_N(thresholds)))

    stage_N = answered.stage_N(thresholds)
    parts = [
        StageScore(stage=stage.name, share=float((stage_N == number).mean()), cost=cost / costs[-1], **scores(label_N))
        for number, (stage, cost, label_N) in enumerate(zip(stages, costs, answered.label_SN, strict=True))
    ]
    # The thresholds of the curve were chosen on other rows than these, as those of the cascade were.
    curve = [whole(choice.thresholds) for choice in choices]
    return Measured(rows=len(rows), stages=tuple(parts), cascade=whole(thresholds), curve=tuple(curve))
