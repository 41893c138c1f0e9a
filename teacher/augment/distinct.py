"""Removes variants that repeat an original or an earlier variant, among all rows of the task or within each row."""

import hashlib

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import console
from pipeline.arrays import Ints
from pipeline.errors import IntegrityError
from pipeline.files import write_error
from pipeline.interrupts import interrupting
from pipeline.sets.record_parts import AugmentationRecord, Sample, Setting
from pipeline.sql.database import connect, disk_error
from teacher.augment.methods import METHODS
from teacher.augment.variants import SCHEMA, VariantsFolder

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
    """The record of the variants, whose distinct rows it writes once all have been generated.

    Args:
        folder: the folder of the variants.
        originals: the source rows.
        method: the method of augmentation.
        num_variants: the number of tried variants per row.
        settings: everything that determines the rows.
    """
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
