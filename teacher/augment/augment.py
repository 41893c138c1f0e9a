"""``distill augment``: makes variants of a task's rows before a teacher labels them.

Repeating the command continues its work. A variant is a function of its row, its number, the method's settings and the
seed. It does not depend on batches, processes or interruptions.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
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
from teacher.augment.augment_settings import AugmentSettings
from teacher.augment.distinct import write_distinct
from teacher.augment.methods import Method, PlannedVariants, Sides
from teacher.augment.variants import Variants, VariantsFolder, make_variants, open_variants, require_same_variants

FOLDER = "augmented"
# In the folder that is removed at the end, so that a late kill does not leave it behind.
LOCK = "lock"
# Increase it when the same settings give other variants.
RULES = 1


@dataclass(frozen=True)
class Augmentation:
    """Variants of a task's rows that are wanted.

    Attributes:
        method: how they are made.
        task: whose rows get them.
        store: the folder of sets, where they are kept.
        name: theirs in the store, or None for that of the task and the method.
    """

    method: Method
    task: Task
    store: Path
    name: str | None

    @property
    def root(self) -> Path:
        """The folder of the variants."""
        return self.store / FOLDER / (self.name or f"{self.task.name}-{self.method.name}")

    @cached_property
    def split(self) -> str:
        """The split whose rows get variants."""
        return self.method.split_of(self.task)

    @cached_property
    def sides(self) -> Sides:
        """Which sentences the variants of a row change, and so how many variants are tried."""
        return self.method.sides(self.task.is_pair, self.method.variants_of(self.task))

    def plan(self, rows: pa.Table) -> PlannedVariants:
        """Returns the method's plan, with all settings that decide the variants."""
        planned = self.method.plan(rows, self.store)
        numbers: dict[str, Setting] = {"num_variants": self.method.variants_of(self.task), "seed": self.method.seed}
        settings = self.common_settings(rows) | numbers | planned.settings | numbers
        return PlannedVariants(settings, planned.editor)

    def common_settings(self, rows: pa.Table) -> dict[str, Setting]:
        """Returns what is being augmented, and by which rules."""
        num_rows = self.method.num_rows
        own: dict[str, Setting] = {} if num_rows is None else {"split": self.split, "sentences": num_rows}
        return {
            "method": self.method.name,
            "rules": RULES,
            "task": f"{self.task.name} version {self.task.version}",
            "source": rows_sha256(rows),
            **own,
        }


def augment(config: AugmentSettings, command: str) -> AugmentationRecord | None:
    """Writes the variants that ``config`` describes, or goes on with them.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        What came of it. None on other ranks than the first.
    """
    task = load_task(config.task, config.manifest)
    wanted = Augmentation(config.by, task, config.store, config.name)
    rows = read_source(wanted, config.data, (wanted.split,)).own(wanted.split)
    state = processes()
    variants = _make(wanted, rows, state, command)
    return variants.record if state.is_main_process else None


def read_source(wanted: Augmentation, data: Path | None, splits: tuple[str, ...] = ()) -> Source:
    """The rows of a task's splits, all by default; or only those that are augmented, if they are not learnt from.

    Raises:
        DataError: if there are none to be augmented.
    """
    task, split, method = wanted.task, wanted.split, wanted.method
    if method.for_training:
        source = load_source(task, data, splits)
    else:
        whole_splits = load_source(task, data, (split,))
        # Variants that mask each word are many per row, so only the first rows of the split get them.
        some = {name: rows.slice(0, method.num_rows) for name, rows in whole_splits.splits.items()}
        source = replace(whole_splits, splits=some)
    if split not in source.splits:
        raise DataError(f"{source.description}: has no rows of the split {split!r}, and only these are augmented")
    return source


def variants_for(
    wanted: Augmentation, rows: pa.Table, state: PartialState, command: str, manifest: Path | None, is_job: bool
) -> Variants:
    """The variants that a dump adds: those that are there if they agree with the flags that were given, else new ones.

    Args:
        wanted: the variants.
        rows: those of the task's rows that get variants.
        state: of the processes.
        command: the command line, for the record.
        manifest: the task's file, if it is not one that is shipped, for the message.
        is_job: whether this is one of several jobs, which must not all make them.

    Raises:
        ConfigError: if a job finds none.
        FingerprintMismatchError: if those that are there were made with other settings.
    """
    root, method = wanted.root, wanted.method
    existing = open_variants(root)
    # Several jobs that each made the variants would repeat hours of work and write the same folder.
    if existing is None and is_job:
        which = f"--manifest {manifest}" if manifest else f"--task {wanted.task.name}"
        first = f"run `distill augment {which} --method {method.name} --name {root.name}` first, or give --augment none"
        raise ConfigError(f"--num-shards: {root} is not finished; {first}")
    if existing is None:
        return _make(wanted, rows, state, command)
    stored = existing.record.settings
    given: dict[str, Setting] = wanted.common_settings(rows) | method.own_settings
    if method.named_files:
        # Hashing a masked LM means loading it, so that happens only if such a flag was given.
        settings = wanted.plan(rows).settings
        given |= {name: settings[name] for name in method.named_files}
    require_same_variants(root, {name: value for name, value in stored.items() if name in given}, given)
    return existing


def _make(wanted: Augmentation, rows: pa.Table, state: PartialState, command: str) -> Variants:
    """Makes what is missing of the variants."""
    sides, root = wanted.sides, wanted.root
    planned = wanted.plan(rows)
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
            write_distinct(folder, rows, wanted.method.name, len(sides), planned.settings)
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
