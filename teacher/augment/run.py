"""``distill augment``: variants of a task's training rows, made before a teacher labels them.

Repeating it goes on from what is there. A variant is a function of its row, its number, the method's settings and the
seed; neither batches nor processes nor interruptions have a say in it.
"""

from pathlib import Path

import pyarrow as pa
from accelerate import PartialState

from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.logit_set.parts import (
    AugmentationRecord,
    Setting,
)
from pipeline.sources import Source, load_source
from pipeline.tasks.task import Task, load_task
from teacher.augment.config import AugmentFlags
from teacher.augment.distinct import keep_distinct
from teacher.augment.folder import Folder, Variants, check_settings, open_variants, start_folder, write_part
from teacher.augment.methods import Plan, common_settings, plan_method
from teacher.augment.variants import Sides, make_variants, sides_of
from teacher.config import TRAIN, AugmentConfig

FOLDER = "augmented"
FILES = {"masked_lm", "word_vectors"}  # flags whose settings are hashes of what they name


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
    if TRAIN not in task.splits:
        raise ConfigError(f"task {task.name!r}: has no split {TRAIN!r}, and only its rows are augmented")
    rows = training_rows(load_source(task, config.data, (TRAIN,)))
    state = PartialState()
    variants = _make(config, task, rows, state, command)
    return variants.record if state.is_main_process else None


def training_rows(source: Source) -> pa.Table:
    """The rows to be augmented.

    Raises:
        DataError: if there are none.
    """
    if TRAIN not in source.splits:
        raise DataError(f"{source.description}: has no rows of the split {TRAIN!r}, and only these are augmented")
    return source.splits[TRAIN]


def variants_for(
    config: AugmentConfig, task: Task, rows: pa.Table, state: PartialState, command: str, is_job: bool
) -> Variants:
    """The variants that a dump adds: those that are there if they agree with the flags that were given, else new ones.

    Args:
        config: the settings.
        task: the task.
        rows: its training rows.
        state: of the processes.
        command: the command line, for the record.
        is_job: whether this is one of several jobs, which must not all make them.

    Raises:
        ConfigError: if a job finds none.
        FingerprintMismatchError: if those that are there were made with other settings.
    """
    root = _root(config, task)
    found = open_variants(root)
    if found is None and is_job:
        raise ConfigError(f"--num-shards: {root} is not finished; run `distill augment --name {root.name}` first")
    if found is None:
        return _make(config, task, rows, state, command)
    there = found.record.settings
    wanted: dict[str, Setting] = common_settings(config, task, rows)
    given = config.model_fields_set & {*AugmentFlags.model_fields, "seed"}
    wanted |= {name: getattr(config, name) for name in given - FILES}
    if given & FILES:
        settings = plan_method(config, task, rows).settings
        wanted |= {name: settings[name] for name in given & FILES}
    check_settings(root, {name: there[name] for name in wanted}, wanted)
    return found


def sides_for(config: AugmentConfig, task: Task) -> Sides:
    """Which sentences the variants of a row will change, and so how many variants are tried."""
    return sides_of(config.method, task.is_pair, config.variants_of(task), config.pairs)


def _root(config: AugmentConfig, task: Task) -> Path:
    return config.store / FOLDER / (config.name or f"{task.name}-{config.method}")


def _make(config: AugmentConfig, task: Task, rows: pa.Table, state: PartialState, command: str) -> Variants:
    """Makes what is missing of the variants."""
    sides, root = sides_for(config, task), _root(config, task)
    plan = plan_method(config, task, rows)
    found = open_variants(root)
    if found is not None:
        check_settings(root, found.record.settings, plan.settings)
        return found
    folder = Folder.of(root, plan.settings, rows.num_rows, len(sides))
    state.wait_for_everyone()  # all have looked before the first one writes
    if state.is_main_process:
        start_folder(folder, plan.settings, command)
    state.wait_for_everyone()
    _generate(folder, rows, plan, sides, state)
    if state.is_main_process:
        keep_distinct(folder, rows, config.method, len(sides), plan.settings)
    state.wait_for_everyone()
    variants = open_variants(root)
    assert variants is not None
    return variants


def _generate(folder: Folder, rows: pa.Table, plan: Plan, sides: Sides, state: PartialState) -> None:
    """Writes this process's share of the parts with all variants."""
    method = plan.prepare(state)
    mine = folder.generated.mine(state)
    total = sum(stop - start for start, stop in map(folder.generated.bounds, mine)) * len(sides)
    with console.progress(total, "variants") as steps:
        for part in mine:
            start, stop = folder.generated.bounds(part)
            write_part(folder.generated, part, make_variants(rows.slice(start, stop - start), method, sides))
            steps.advance((stop - start) * len(sides))
    state.wait_for_everyone()
