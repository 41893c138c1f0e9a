"""``distill augment``: makes variants of a task's rows before a teacher labels them.

Repeating the command continues its work. A variant is a function of its row, its number, the method's settings and the
seed. It does not depend on batches, processes or interruptions.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from accelerate import PartialState

from pipeline import console
from pipeline.devices import processes
from pipeline.errors import ConfigError, DataError
from pipeline.files import locked, make_folder
from pipeline.sets.record_parts import AugmentationRecord, Setting
from pipeline.sources import Source, load_source, rows_sha256
from pipeline.stopping import stop_between
from pipeline.tasks.task import Task, load_task
from teacher.augment.augment_settings import AugmentConfig
from teacher.augment.distinct import write_distinct
from teacher.augment.methods import METHODS, AugmentFlags, PlannedVariants, Sides
from teacher.augment.variants import Variants, VariantsFolder, make_variants, open_variants, require_same_variants

FOLDER = "augmented"
# In the folder that is removed at the end, so that a late kill does not leave it behind.
LOCK = "lock"
# Increase it when the same settings give other variants.
RULES = 1
# Flags that name files, whose hashes are the settings.
FILES = {"masked_lm", "word_vectors"}


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
    split = config.split_of(task)
    rows = read_source(config, task, (split,)).own(split)
    state = processes()
    variants = _make(config, task, rows, state, command)
    return variants.record if state.is_main_process else None


def read_source(config: AugmentConfig, task: Task, splits: tuple[str, ...] = ()) -> Source:
    """The rows of a task's splits, all by default; or only those that are augmented, if they are not learnt from.

    Raises:
        DataError: if there are none to be augmented.
    """
    split = config.split_of(task)
    if METHODS[config.method].for_training:
        source = load_source(task, config.data, splits)
    else:
        whole_splits = load_source(task, config.data, (split,))
        # Variants that mask each word are many per row, so only the first rows of the split get them.
        some = {name: rows.slice(0, config.sentences) for name, rows in whole_splits.splits.items()}
        source = replace(whole_splits, splits=some)
    if split not in source.splits:
        raise DataError(f"{source.description}: has no rows of the split {split!r}, and only these are augmented")
    return source


def variants_for(
    config: AugmentConfig, task: Task, rows: pa.Table, state: PartialState, command: str, is_job: bool
) -> Variants:
    """The variants that a dump adds: those that are there if they agree with the flags that were given, else new ones.

    Args:
        config: the settings.
        task: the task.
        rows: those of its rows that get variants.
        state: of the processes.
        command: the command line, for the record.
        is_job: whether this is one of several jobs, which must not all make them.

    Raises:
        ConfigError: if a job finds none.
        FingerprintMismatchError: if those that are there were made with other settings.
    """
    root = _root(config, task)
    existing = open_variants(root)
    # Several jobs that each made the variants would repeat hours of work and write the same folder.
    if existing is None and is_job:
        which = f"--manifest {config.manifest}" if config.manifest else f"--task {task.name}"
        first = (
            f"run `distill augment {which} --method {config.method} --name {root.name}` first, or give --augment none"
        )
        raise ConfigError(f"--num-shards: {root} is not finished; {first}")
    if existing is None:
        return _make(config, task, rows, state, command)
    stored = existing.record.settings
    wanted: dict[str, Setting] = _common_settings(config, task, rows)
    given = config.model_fields_set & {*AugmentFlags.model_fields, "seed"}
    wanted |= {name: getattr(config, name) for name in given - FILES}
    if given & FILES:
        # Hashing a masked LM means loading it, so that happens only if such a flag was given.
        settings = _plan(config, task, rows).settings
        wanted |= {name: settings[name] for name in given & FILES}
    then = {name: value for name, value in stored.items() if name in wanted}
    require_same_variants(root, then, wanted)
    return existing


def sides_for(config: AugmentConfig, task: Task) -> Sides:
    """Which sentences the variants of a row will change, and so how many variants are tried."""
    return METHODS[config.method].sides(task.is_pair, config.variants_of(task), config.pairs)


def _plan(config: AugmentConfig, task: Task, rows: pa.Table) -> PlannedVariants:
    """The method's plan, with all settings that decide the variants."""
    planned = METHODS[config.method].plan(config, rows)
    numbers: dict[str, Setting] = {"num_variants": config.variants_of(task), "seed": config.seed}
    return PlannedVariants(_common_settings(config, task, rows) | numbers | planned.settings, planned.editor)


def _common_settings(config: AugmentConfig, task: Task, rows: pa.Table) -> dict[str, Setting]:
    """What is being augmented, and by which rules."""
    own: dict[str, Setting] = {"split": config.split_of(task), "sentences": config.sentences}
    return {
        "method": config.method,
        "rules": RULES,
        "task": f"{task.name} version {task.version}",
        "source": rows_sha256(rows),
        **({} if METHODS[config.method].for_training else own),
    }


def _root(config: AugmentConfig, task: Task) -> Path:
    return config.store / FOLDER / (config.name or f"{task.name}-{config.method}")


def _make(config: AugmentConfig, task: Task, rows: pa.Table, state: PartialState, command: str) -> Variants:
    """Makes what is missing of the variants."""
    sides, root = sides_for(config, task), _root(config, task)
    planned = _plan(config, task, rows)
    existing = open_variants(root)
    if existing is not None:
        require_same_variants(root, existing.record.settings, planned.settings)
        return existing
    folder = VariantsFolder.of(root, planned.settings, rows.num_rows, len(sides), command)
    make_folder(folder.temporary)
    busy = f"{root}: is being made by another process; wait for it, or choose another --name"
    # Every process has looked for existing variants before the first one writes.
    state.wait_for_everyone()
    with locked(folder.temporary / LOCK, busy) if state.is_main_process else nullcontext():
        if state.is_main_process:
            folder.start()
        state.wait_for_everyone()
        _generate(folder, rows, planned, sides, state)
        if state.is_main_process:
            write_distinct(folder, rows, config.method, len(sides), planned.settings)
        state.wait_for_everyone()
    variants = open_variants(root)
    assert variants is not None
    return variants


def _generate(
    folder: VariantsFolder, rows: pa.Table, planned: PlannedVariants, sides: Sides, state: PartialState
) -> None:
    """Writes this process's share of the parts with all variants."""
    editor = planned.editor(state)
    my_parts = folder.work.my_missing(folder.generated, state)
    total = sum(part.size for part in my_parts) * len(sides)
    with console.progress(total, "variants") as steps:
        for part in stop_between(my_parts):
            folder.work.write_table(part, make_variants(rows.slice(part.start, part.size), editor, sides))
            steps.advance(part.size * len(sides))
    state.wait_for_everyone()
