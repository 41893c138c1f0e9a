"""``distill augment``: variants of a task's training rows, made before a teacher labels them.

Repeating it goes on from what is there. A variant is a function of its row, its number, the method's settings and the
seed; neither batches nor processes nor interruptions have a say in it.
"""

from dataclasses import dataclass

import pyarrow as pa
from accelerate import PartialState

from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder
from pipeline.logit_set.augmentation import AugmentationRecord
from pipeline.sources import Source, load_source
from pipeline.tasks import Task, load_task
from teacher.augment.folder import Folder, open_folder, write_part
from teacher.augment.keep import keep_distinct
from teacher.augment.methods import Plan, plan_method
from teacher.augment.variants import Sides, make_variants, sides_of
from teacher.config import AugmentConfig

FOLDER = "augmented"
TRAIN = "train"


@dataclass(frozen=True)
class Variants:
    """Finished variants: where they are, and what came of making them."""

    folder: Folder
    record: AugmentationRecord


def augment(config: AugmentConfig, command: str) -> AugmentationRecord | None:
    """Writes the variants that ``config`` describes, or goes on with them.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        What came of it. None on other ranks than the first.
    """
    config.check()
    task = load_task(config.task, config.manifest)
    source = load_source(task, config.data, (TRAIN,))
    state = PartialState()
    variants = make_or_open(config, task, source, state, command)
    return variants.record if state.is_main_process else None


def make_or_open(
    config: AugmentConfig, task: Task, source: Source, state: PartialState, command: str, only_open: bool = False
) -> Variants:
    """The variants of the rows of ``train``; those that are not there yet are made.

    Args:
        config: the settings.
        task: the task.
        source: its rows.
        state: of the processes.
        command: the command line, for the record.
        only_open: do not make any.

    Raises:
        DataError: if there are no such rows.
        ConfigError: if variants are missing and must not be made.
        FingerprintMismatchError: if variants of that name were made with other settings.
    """
    if TRAIN not in source.splits:
        raise DataError(f"{source.description}: has no split {TRAIN!r}, and only its rows are augmented")
    rows, sides = source.splits[TRAIN], sides_for(config, task)
    plan = plan_method(config, task, rows)
    root = config.store / FOLDER / (config.name or f"{task.name}-{config.method}")
    folder = open_folder(root, plan.settings, rows.num_rows, len(sides), command)
    record = folder.finished()
    if record is None and only_open:
        raise ConfigError(f"--num-shards: {root} is not finished; run `distill augment` first, then the jobs")
    if record is None:
        _generate(folder, rows, plan, sides, state)
        if state.is_main_process:
            keep_distinct(folder, rows, config.method, len(sides), plan.settings)
        state.wait_for_everyone()
        record = folder.finished()
    assert record is not None
    return Variants(folder, record)


def sides_for(config: AugmentConfig, task: Task) -> Sides:
    """Which sentences the variants of a row will change, and so how many variants are tried."""
    return sides_of(config.method, task.is_pair, config.variants_of(task), config.pairs)


def _generate(folder: Folder, rows: pa.Table, plan: Plan, sides: Sides, state: PartialState) -> None:
    """Writes this process's share of the parts with all variants."""
    method = plan.prepare(state)
    make_folder(folder.generated.folder)
    mine = folder.generated.mine(state)
    total = sum(stop - start for start, stop in map(folder.generated.bounds, mine)) * len(sides)
    with console.progress(total, "variants") as steps:
        for part in mine:
            start, stop = folder.generated.bounds(part)
            write_part(folder.generated, part, make_variants(rows.slice(start, stop - start), method, sides))
            steps.advance((stop - start) * len(sides))
    state.wait_for_everyone()
