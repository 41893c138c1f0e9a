"""``distill augment``: makes variants of a task's rows before a teacher labels them.

Repeating the command continues its work. A variant is a function of its row, its number, the method's settings and the
seed. It does not depend on batches, processes or interruptions. Variants that repeat an original or an earlier variant
are removed, among all rows of the task or within each row.
"""

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import PartialState

from pipeline import console
from pipeline.arrays import Ints
from pipeline.devices import processes
from pipeline.errors import ConfigError, DataError, IntegrityError
from pipeline.files import locked, make_folder, write_error
from pipeline.interrupts import interrupting, stop_between
from pipeline.resumable import require_same_settings
from pipeline.sets.record_parts import AugmentationRecord, Sample, Setting
from pipeline.sources import Source, load_source, rows_sha256
from pipeline.sql.database import connect, disk_error
from pipeline.tasks.task import Task, load_task
from teacher.augment.methods import METHODS, AugmentSettings, Method, PlannedVariants, Sides
from teacher.augment.variants import (
    ADVICE,
    SCHEMA,
    Variants,
    VariantsFolder,
    make_variants,
    open_variants,
)

FOLDER = "augmented"
# In the folder that is removed at the end, so that a late kill does not leave it behind.
LOCK = "lock"
# Increase it when the same settings give other variants.
RULES = 1

SAMPLE_ROWS = 10
TEXT = ("sentence1", "sentence2")
# An original comes before all variants, and an earlier variant before later ones. Hashes replace the texts, so that a
# row takes only some bytes of memory. chr(0) keeps ("ab", "c") and ("a", "bc") apart.
REPEATED = """
    with texts as (
        select source_row, 0 as variant, sentence1, sentence2 from originals
        union all
        select source_row, variant, sentence1, sentence2 from read_parquet($files, hive_partitioning = false)
    ), hashes as (
        select source_row, variant, md5_number(concat(sentence1, chr(0), sentence2)) as text from texts
    )
    select source_row, variant, first_value(variant) over same = 0 as is_original
    from hashes
    window same as (partition by {same} order by variant > 0, source_row, variant)
    qualify row_number() over same > 1 and variant > 0
"""


def write_distinct(
    folder: VariantsFolder, originals: pa.Table, method: str, num_variants: int, settings: dict[str, Setting]
) -> AugmentationRecord:
    """The record of the variants, whose distinct rows it writes once all have been generated."""
    repeated = _repeated(folder, originals, METHODS[method].for_training)
    dropped = np.sort(_keys(repeated))
    unchanged = int(np.count_nonzero(repeated.column("is_original").to_numpy()))
    generated = sum(pq.read_metadata(folder.path(part)).num_rows for part in folder.generated)
    total = generated - len(dropped)
    sampled = set(np.linspace(0, max(0, total - 1), SAMPLE_ROWS).astype(int).tolist())
    digest = hashlib.sha256()
    changed_words = words = seen = 0
    sample = []
    with console.progress(total, "distinct variants") as steps:
        for part, distinct in zip(folder.generated, folder.rows, strict=True):
            table = _without(pq.read_table(folder.path(part), schema=SCHEMA, partitioning=None), dropped)
            folder.work.write_table(distinct, table)
            changed_words += int(table.column("changed").to_numpy().sum())
            words += int(table.column("words").to_numpy().sum())
            for number, row in enumerate(table.to_pylist(), start=seen):
                digest.update(repr([row[name] for name in ("source_row", "variant", *TEXT)]).encode())
                if number in sampled:
                    sample.append(_sample(originals, row))
            seen += table.num_rows
            steps.advance(table.num_rows)
    record = AugmentationRecord(
        method=method,
        settings=settings,
        source_rows=originals.num_rows,
        tried=originals.num_rows * num_variants,
        generated=generated,
        unchanged=unchanged,
        repeated=len(dropped) - unchanged,
        rows=total,
        changed_words=changed_words,
        words=words,
        rows_sha256=digest.hexdigest(),
        sample=tuple(sample),
    )
    folder.finish(record)
    return record


def _repeated(folder: VariantsFolder, originals: pa.Table, among_all: bool) -> pa.Table:
    """Returns the keys of variants that repeat an original or an earlier variant, among all rows or their own row."""
    query = REPEATED.format(same="text" if among_all else "source_row, text")
    spilled = folder.temporary / "spilled"
    with connect(config={"temp_directory": str(spilled)}) as connection, interrupting(connection.interrupt):
        connection.register("originals", originals.select(["source_row", *TEXT]))
        files = [str(folder.path(part)) for part in folder.generated]
        try:
            return connection.sql(query, params={"files": files}).to_arrow_table()
        except duckdb.Error as error:
            full = disk_error(error)
            if full is not None:
                raise write_error(spilled, full) from error
            # Advice to remove the folder would be wrong here.
            if isinstance(error, duckdb.OutOfMemoryException):
                raise
            raise IntegrityError(f"{folder.work.root}: {error}. Remove the folder and repeat the command.") from error


def _without(table: pa.Table, dropped: Ints) -> pa.Table:
    """Returns the rows whose keys are not among the sorted dropped ones."""
    keys = _keys(table)
    if not len(keys):
        return table
    here = slice(np.searchsorted(dropped, keys[0]), np.searchsorted(dropped, keys[-1], side="right"))
    return table.filter(pa.array(~np.isin(keys, dropped[here])))


def _keys(rows: pa.Table) -> Ints:
    """Returns source row and variant as one number [N], in the order of the rows."""
    # A row has far fewer than 2^20 variants, so no two keys share a number.
    return np.asarray(rows.column("source_row").to_numpy() * 2**20 + rows.column("variant").to_numpy())


def _sample(originals: pa.Table, row: dict[str, object]) -> Sample:
    (original,) = originals.slice(row["source_row"], 1).select(list(TEXT)).to_pylist()
    return Sample(
        source_row=row["source_row"],
        variant=row["variant"],
        origin=row["origin"],
        original=tuple(original[name] for name in TEXT if original[name] is not None),
        text=tuple(row[name] for name in TEXT if row[name] is not None),
    )


@dataclass(frozen=True)
class Augmentation:
    """The requested variants of a task's rows."""

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

    Returns: The outcome. None on other ranks than the first.
    """
    task = load_task(config.task, config.manifest)
    wanted = Augmentation(config.by, task, config.store, config.name)
    rows = read_source(wanted, config.data, (wanted.split,)).own(wanted.split)
    state = processes()
    variants = _make(wanted, rows, state, command)
    return variants.record if state.is_main_process else None


def read_source(wanted: Augmentation, data: Path | None, splits: tuple[str, ...] = ()) -> Source:
    """Returns the rows of a task's splits (default: all), or only the augmented ones if they are not for training."""
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
    """Returns the variants for a dump: existing ones that match the given flags, or new ones."""
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
    same = {name: value for name, value in stored.items() if name in given}
    require_same_settings(f"{root} holds variants", same, given, ADVICE)
    return existing


def _make(wanted: Augmentation, rows: pa.Table, state: PartialState, command: str) -> Variants:
    """Makes the missing variants."""
    sides, root = wanted.sides, wanted.root
    planned = wanted.plan(rows)
    existing = open_variants(root)
    if existing is not None:
        require_same_settings(f"{root} holds variants", existing.record.settings, planned.settings, ADVICE)
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
        editor = planned.editor(state)
        my_parts = folder.work.my_missing(folder.generated, state)
        with console.progress(sum(part.size for part in my_parts) * len(sides), "variants") as steps:
            for part in stop_between(my_parts):
                folder.work.write_table(part, make_variants(rows.slice(part.start, part.size), editor, sides))
                steps.advance(part.size * len(sides))
        state.wait_for_everyone()
        if state.is_main_process:
            write_distinct(folder, rows, wanted.method.name, len(sides), planned.settings)
        state.wait_for_everyone()
    variants = open_variants(root)
    assert variants is not None
    return variants
