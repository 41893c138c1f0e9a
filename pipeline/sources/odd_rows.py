"""Finds unusual but valid training rows, which are reported before anything is trained."""

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.columns import MAX_EXAMPLES, column_name, plain, rows_in_words
from pipeline.sources.gold import NUMERAL
from pipeline.tasks.task import Task

UNIT = "\x1f"  # joins words for comparisons, because it occurs in no text


def absent_labels(task: Task, place: str, rows: pa.Table) -> list[str]:
    """Returns a warning with the labels that no row has."""
    gold = rows.column("label").drop_null()
    if not task.labels or not len(gold):
        return []
    values = gold if task.type == "classification" else pc.list_flatten(gold)
    absent = [name for k, name in enumerate(task.labels) if k not in {*pc.unique(values).to_pylist()}]
    if not absent:
        return []
    return [f"{place}: no row has the label {', '.join(absent[:MAX_EXAMPLES])}. It cannot be learned"]


def contradictions(task: Task, place: str, rows: pa.Table) -> list[str]:
    """Returns a warning with the number of texts or pairs with several gold labels or scores, and of their rows."""
    gold = "score" if task.type == "regression" else "label"
    rows = rows.filter(pc.is_valid(rows.column(gold)))
    names = ["sentence1", "sentence2"]
    table = pa.table({name: _comparable(rows.column(name)) for name in (*names, gold)} | {"row": rows["source_row"]})
    counted = table.group_by(names).aggregate([(gold, "count_distinct"), ("row", "min"), ("row", "count")])
    odd = counted.filter(pc.greater(counted.column(f"{gold}_count_distinct"), 1))
    if not odd.num_rows:
        return []
    count, first = pc.sum(odd.column("row_count")).as_py(), min(odd["row_min"].to_pylist())
    what = "one text has" if odd.num_rows == 1 else f"{odd.num_rows:,} texts have"
    return [f"{place}: {what} several {gold}s, in {count:,} rows, first in {rows_in_words([first])}"]


def swallowed_rows(task: Task, place: str, table: pa.Table) -> list[str]:
    """Returns a warning about texts of a CSV file that look like several rows, such as after a misplaced quote.

    Args:
        task: the task.
        place: the file, for messages.
        table: its rows before they were converted.
    """
    if ".csv" not in place.lower() or len(table.column_names) < 2:
        return []
    odd: set[int] = set()
    for accepted in (task.columns.sentence1, task.columns.sentence2 or ()):
        name = column_name(table.column_names, place, accepted, []) if accepted else None
        texts = pa.nulls(0) if name is None else plain(table.column(name))
        if pa.types.is_string(texts.type):
            long = pc.indices_nonzero(pc.match_substring(texts, "\n").fill_null(False)).to_pylist()
            odd.update(row for row in long if _looks_like_rows(task, texts[row].as_py(), len(table.column_names)))
    if not odd:
        return []
    where = rows_in_words(sorted(odd))
    return [f"{place}: a text in quotes looks like several rows of the file, in {where}. Is a quote missing?"]


def _looks_like_rows(task: Task, text: str, num_columns: int) -> bool:
    """Whether every line except the first and the last has as many fields as the file, including gold.

    A misplaced quote begins within a row and ends within another one. With two lines, the first one is checked.
    """
    lines = text.split("\n")
    rows = [[field.strip(' "') for field in line.split(",")] for line in (lines[1:-1] or lines[:1])]
    return all(len(fields) >= num_columns and any(_is_gold(task, field) for field in fields) for fields in rows)


def _is_gold(task: Task, field: str) -> bool:
    """Whether a field is a label, labels of words, or a number."""
    return bool(NUMERAL.fullmatch(field)) or (bool(field) and all(part in task.labels for part in field.split()))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as values for grouping. Lists are joined to texts."""
    if not pa.types.is_list(column.type):
        return column
    texts = column.cast(pa.list_(pa.string()))
    return pc.binary_join(texts, UNIT)
