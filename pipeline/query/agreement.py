"""How much the teachers of a mixture agree, and how good each of them is."""

from typing import Any

import duckdb
import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.query.mixture import Mixture
from pipeline.sets.signals.logits import logits_of
from pipeline.sql.gate import first_row, to_arrow
from pipeline.tasks.metrics import fidelity, score_logits
from pipeline.tasks.target import gold_arrays

Comparison = dict[str, Any]


def compare_teachers(mixture: Mixture) -> dict[str, Comparison]:
    """Compares the teachers of a mixture over the rows that every set has.

    Returns:
        Per split ``rows`` (those that every set has), ``left_out`` (rows of each set that others have not),
        ``with_first`` (of each other teacher: for classes and bins ``agreement`` and ``kl``, the mean KL divergence
        from the first teacher, nats; for a score ``pearson`` and ``rmse``), and on dev splits ``scores`` (the task's
        metrics of each teacher and of the ``mixture``).
    """
    return {split: _compare(mixture, split) for split in mixture.splits}


def comparison_lines(comparison: dict[str, Comparison]) -> list[str]:
    """Lines of `compare_teachers`' result for the terminal."""
    lines = []
    for split, parts in comparison.items():
        counts = [f"{parts['rows']:,} rows in every set"]
        counts += [f"{count:,} of {name} left out" for name, count in parts["left_out"].items() if count]
        lines.append(f"{split}: {', '.join(counts)}")
        lines += [f"{split}, {name} and the first: {_shown(v)}" for name, v in parts["with_first"].items()]
        lines += [f"{split}, {name}: {_shown(v)}" for name, v in parts.get("scores", {}).items() if v]
    return lines


def _compare(mixture: Mixture, split: str) -> Comparison:
    record = mixture.record
    with mixture.opened(split) as connection:
        counts = {one.view: _count(connection, f'"{one.view}"') for one in mixture.sets}
        teachers = {one.view: _logits(connection, mixture, f'"{one.view}".logits') for one in mixture.sets}
        teachers["mixture"] = _logits(connection, mixture, mixture.mixed_logits)
        gold = gold_arrays(record.target, _read(connection, mixture, f'"{mixture.view}".label, "{mixture.view}".score'))
    rows = len(teachers["mixture"])
    first_NC = teachers[mixture.view]
    comparison: Comparison = {
        "rows": rows,
        "left_out": {view: count - rows for view, count in counts.items()},
        "with_first": {other.view: fidelity(record.target, teachers[other.view], first_NC) for other in mixture.others},
    }
    if split != "train":
        comparison["scores"] = {
            name: score_logits(record.metrics, record.target, logits_NC, *gold) for name, logits_NC in teachers.items()
        }
    return comparison


def _read(connection: duckdb.DuckDBPyConnection, mixture: Mixture, columns: str) -> pa.Table:
    return to_arrow(connection.sql(f"select {columns} from {mixture.joined} order by source_row, variant"))  # noqa: S608


def _logits(connection: duckdb.DuckDBPyConnection, mixture: Mixture, expression: str) -> Floats:
    table = _read(connection, mixture, f"{expression} as logits")
    return logits_of(table, mixture.record.target.num_logits)


def _count(connection: duckdb.DuckDBPyConnection, view: str) -> int:
    row = first_row(connection, f"select count(*) from {view}")  # noqa: S608
    assert row is not None
    return int(row[0])


def _shown(values: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in values.items())
