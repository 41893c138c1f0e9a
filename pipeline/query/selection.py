"""``--query``: reads the training rows that a SELECT chooses, with its own weights and logits if it returns them."""

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from pipeline.errors import QueryError, did_you_mean, raise_all
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sql.read_only_query import first_row, query_errors, select, to_arrow

# No view has a space in its name.
CHOSEN = '"chosen rows"'
INTEGERS = {f"{sign}{name}" for sign in ("", "U") for name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")}
RETURNED = {"weight": "double", "logits": "double[]"}


def read_chosen(logit_set: ExampleSet, query: str, columns: Sequence[str]) -> pa.Table:
    """Runs a query over the training rows of a set, or of the sets of a mixture.

    The query sees a view per set, named as in the catalog, with only its training rows. With a single set, there is
    also the view ``examples``. The query returns ``source_row`` and ``variant``, and optionally ``weight`` and
    ``logits``. Other columns of the set are ignored.

    Args:
        logit_set: provides the columns of the chosen rows, and the logits if the query returns none.
        query: one SELECT.
        columns: the columns to read in addition to logits and weight (float64, 1 if the query returns none).

    Returns:
        The chosen rows in the order of their keys.

    Raises:
        QueryError: if the query fails or returns wrong rows, naming a row for each problem.
    """
    with logit_set.opened("train", f"{query} {logit_set.rows_sql}") as connection:
        relation = select(connection, query.strip().removesuffix(";"))  # the query becomes part of another statement
        # SQL names are case-insensitive, and a query may return them in any case.
        given = [name.lower() for name in relation.columns]
        types = dict(zip(given, map(str, relation.types), strict=True))
        raise_all(QueryError, "--query", _column_problems(logit_set, given, types))
        returned = [f"{name}::{kind} as {name}" for name, kind in RETURNED.items() if name in given]
        source = f'"{logit_set.view}"' if "logits" in given else logit_set.rows_sql
        values = [
            "c.weight" if "weight" in given else "1.0::double as weight",
            f"c.logits::float[{logit_set.record.target.num_logits}] as logits" if "logits" in given else "e.logits",
        ]
        with query_errors():
            chosen = ", ".join(["source_row::bigint as source_row", "variant::bigint as variant", *returned])
            # The result is stored once: a query with random() would otherwise choose other rows for each check below.
            relation.project(chosen).create(CHOSEN.strip('"'))
            raise_all(QueryError, "--query", _row_problems(connection, logit_set, source, given))
            return to_arrow(
                connection.sql(
                    f"select {', '.join([*(f'e.{name}' for name in columns), *values])} "  # noqa: S608
                    f"from {CHOSEN} c join {source} e using (source_row, variant) order by source_row, variant"
                )
            )


def _column_problems(logit_set: ExampleSet, given: Sequence[str], types: dict[str, str]) -> list[str]:
    record = logit_set.record
    known = [*record.arrow_schema().names, "weight"]
    problems = [f"unknown column {name!r}. {did_you_mean(name, known)}" for name in given if name not in known]
    problems += [f"column {name!r} is repeated" for name in sorted(set(given)) if given.count(name) > 1]
    for name in ("source_row", "variant"):
        if name not in given:
            problems.append(f"returns no {name}. It must return source_row and variant, which identify the rows")
        elif types[name] not in INTEGERS:
            problems.append(f"{name} is of type {types[name]}, but must be an integer")
    return problems


def _row_problems(
    connection: duckdb.DuckDBPyConnection, logit_set: ExampleSet, source: str, given: Sequence[str]
) -> list[str]:
    width = logit_set.record.target.num_logits
    known = logit_set.view if "logits" in given else "every set"
    # "is not distinct from" also matches nulls, so that a row without a key is reported once, by its own check.
    same_key = "e.source_row is not distinct from c.source_row and e.variant is not distinct from c.variant"
    wrong = {
        "has an incomplete key": "source_row is null or variant is null",
        f"is not a training row of {known}": f"not exists (from {source} e where {same_key})",
        "is chosen twice": f"(select count(*) from {CHOSEN} e where {same_key}) > 1",  # noqa: S608
    }
    if "weight" in given:
        is_right = "isfinite(weight) and weight >= 0"
        wrong["has a weight that is not a finite number from 0 up"] = f"not coalesce({is_right}, false)"
    if "logits" in given:
        finite = "len(list_filter(logits, lambda x: isfinite(try_cast(x as float))))"
        wrong[f"has logits that are not {width} finite numbers"] = (
            f"logits is null or len(logits) <> {width} or {finite} <> {width}"
        )
    problems = []
    for reason, condition in wrong.items():
        sql = f"select source_row, variant from {CHOSEN} c where {condition} order by all limit 1"  # noqa: S608
        row = first_row(connection, sql)
        if row is not None:
            problems.append("source row {}, variant {}: {}".format(*row, reason))
    if first_row(connection, f"select 1 from {CHOSEN} limit 1") is None:  # noqa: S608
        problems.append("selects no row")
    elif "weight" in given and first_row(connection, f"select max(weight) from {CHOSEN}") == (0,):  # noqa: S608
        problems.append("gives every row the weight 0")
    return problems
