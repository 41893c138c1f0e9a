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
from pipeline.interrupts import stop_between
from pipeline.sets.record_parts import AugmentationRecord, Setting
from pipeline.sources import Source, load_source, rows_sha256
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
    """The requested variants of a task's rows.

    Attributes:
        method: the method of augmentation.
        task: the task.
        store: the folder of sets, which also contains the variants.
        name: their name in the store. None: made from the task and the method.
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
        """The sentences that the variants of a row change. Its length is the number of tried variants."""
        return self.method.sides(self.task.is_pair, self.method.variants_of(self.task))

    def plan(self, rows: pa.Table) -> PlannedVariants:
        """Returns the method's plan, with all settings that decide the variants."""
        planned = self.method.plan(rows, self.store)
        numbers: dict[str, Setting] = {"num_variants": self.method.variants_of(self.task), "seed": self.method.seed}
        settings = self.common_settings(rows) | numbers | planned.settings | numbers
        return PlannedVariants(settings, planned.editor)

    def common_settings(self, rows: pa.Table) -> dict[str, Setting]:
        """Returns the task and the rules of the augmentation."""
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
    """Writes the variants that ``config`` describes, or resumes them.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns: The outcome. None on other ranks than the first.
    """
    task = load_task(config.task, config.manifest)
    wanted = Augmentation(config.by, task, config.store, config.name)
    rows = read_source(wanted, config.data, (wanted.split,)).own(wanted.split)
    state = processes()
    variants = _make(wanted, rows, state, command)
    return variants.record if state.is_main_process else None


def read_source(wanted: Augmentation, data: Path | None, splits: tuple[str, ...] = ()) -> Source:
    """Returns the rows of a task's splits (default: all), or only the augmented ones if they are not for training.

    Raises:
        DataError: if there are no rows to augment.
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
        raise DataError(f"{source.description}: has no rows of the split {split!r}, but only these are augmented")
    return source


def variants_for(
    wanted: Augmentation, rows: pa.Table, state: PartialState, command: str, manifest: Path | None, is_job: bool
) -> Variants:
    """Returns the variants for a dump: existing ones that match the given flags, or new ones.

    Args:
        wanted: the requested variants.
        rows: the task's rows that get variants.
        state: the processes.
        command: the command line, for the record.
        manifest: the user's manifest, if there is one, for the message.
        is_job: whether this is one of several jobs, which must not each make variants.

    Raises:
        ConfigError: if a job finds no variants.
        FingerprintMismatchError: if existing variants were made with other settings.
    """
    root, method = wanted.root, wanted.method
    existing = open_variants(root)
    # Several jobs that each made the variants would repeat hours of work and write the same folder.
    if existing is None and is_job:
        which = f"--manifest {manifest}" if manifest else f"--task {wanted.task.name}"
        first = f"run `distill augment {which} --method {method.name} --name {root.name}` first, or use --augment none"
        raise ConfigError(f"--num-shards: {root} is not finished. {first}")
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
    """Makes the missing variants."""
    sides, root = wanted.sides, wanted.root
    planned = wanted.plan(rows)
    existing = open_variants(root)
    if existing is not None:
        require_same_variants(root, existing.record.settings, planned.settings)
        return existing
    folder = VariantsFolder.of(root, planned.settings, rows.num_rows, len(sides), command)
    make_folder(folder.temporary)
    busy = f"{root}: another process is making it. Wait for it, or choose another --name"
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
