"""The SQL queries of a report: only aggregates and first rows, so that a split need not fit into memory.

``table`` is the name of a table or view with a set's columns and all rows of one split. Callers choose the names, so
they cannot inject SQL.
"""

import duckdb

from distill.apps.report.page import Rows
from pipeline.sql.macros import macros_of
from pipeline.sql.read_only_query import select, to_arrow
from pipeline.tasks.target import Target

DECIMALS = 10
BINS = 20
CELLS = 20
SHOWN_ROWS = 8
MOST_SORTED_ROWS = 200_000  # limit for `label_errors`, which holds its rows in memory


def fetch(connection: duckdb.DuckDBPyConnection, sql: str) -> Rows:
    """Returns the rows of one SELECT, with floats rounded to ten decimals: the last bits of sums depend on threads.

    Raises:
        QueryError: if it fails.
    """
    rows: Rows = to_arrow(select(connection, sql)).to_pylist()
    return [{name: round(v, DECIMALS) if isinstance(v, float) else v for name, v in row.items()} for row in rows]


def num_gold(connection: duckdb.DuckDBPyConnection, table: str, target: Target) -> int:
    """Rows with gold of the kind that the target is scored against."""
    column = "label" if target.has_labels else "score"
    return int(fetch(connection, f"select count({column}) as n from {table}")[0]["n"])


def calibration(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Rows, float]:
    """Right answers by confidence, and the expected calibration error."""
    bins = fetch(connection, f"select * exclude (split) from calibration({table})")
    return bins, float(fetch(connection, f"from calibration_error({table})")[0]["calibration_error"])


def label_calibration(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Rows, float]:
    """Returns how often labels hold, by the probability of each label, and the expected calibration error."""
    bins = fetch(
        connection,
        f"select bin / 10 as confidence_from, (bin + 1) / 10 as confidence_to, count(*) as n, avg(p) as confidence, "
        f"avg(is_gold::int) as accuracy from (select *, least(floor(p * 10), 9)::int as bin from "
        f"({_labels_sql(table)} where label is not null)) group by bin order by bin",
    )
    return bins, float(fetch(connection, f"from label_calibration_error({table})")[0]["calibration_error"])


def label_certainty(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Counts the labels of rows by the probability of each label, right and wrong ones separately."""
    return fetch(
        connection,
        f"select least(floor(p * {BINS}), {BINS - 1})::int as bin, (p > 0.5) = is_gold as is_right, count(*) as n "
        f"from ({_labels_sql(table)} where variant = 0) group by all order by all",
    )


def confusion(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Counts gold classes by predicted class."""
    return fetch(connection, f"select label as a, teacher as b, n from confusion({table})")


def confused(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Returns the most frequent confusions of two classes."""
    wrong = f"select label, teacher as predicted, n, share from confusion({table}) where label <> teacher"
    return fetch(connection, f"{wrong} order by n desc, label, predicted limit {SHOWN_ROWS}")


def answers(connection: duckdb.DuckDBPyConnection, a: str, b: str) -> Rows:
    """Counts the predictions of table ``a`` by the predictions of table ``b`` for the same rows."""
    return fetch(
        connection,
        f"select argmax(x.logits) as a, argmax(y.logits) as b, count(*) as n "
        f"from {a} x join {b} y using (split, source_row, variant) group by all order by all",
    )


def certainty(connection: duckdb.DuckDBPyConnection, table: str, macro: str, top: float) -> Rows:
    """Returns a histogram of ``margin`` or ``entropy`` from 0 to ``top``, with right and wrong answers separately."""
    return fetch(
        connection,
        f"select greatest(least(floor({macro}(logits) / {top!r} * {BINS}), {BINS - 1}), 0)::int as bin, "
        f"argmax(logits) = label as is_right, count(*) as n from {table} where variant = 0 group by all order by all",
    )


def hardest(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Returns the rows with the smallest margin."""
    return fetch(connection, f"from hardest({table}) where variant = 0 limit {SHOWN_ROWS}")


def label_errors(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[Rows, int]:
    """Returns rows whose gold is likely wrong, and the stride: one of so many rows was examined."""
    rows = fetch(connection, f"select count(label) as n from {table}")[0]["n"]
    # A fixed stride instead of a random sample gives the same report every time.
    every = -(-rows // MOST_SORTED_ROWS)
    connection.execute(f"create view looked_at as select * from {table} where source_row % {every} = 0")
    errors = fetch(connection, f"from label_errors(looked_at) limit {SHOWN_ROWS}")
    connection.execute("drop view looked_at")
    return errors, every


def label_scores(connection: duckdb.DuckDBPyConnection, table: str, target: Target) -> Rows:
    """Returns precision, recall and F1 of each label, the most frequent gold label first."""
    macro = macros_of(target).label_scores
    scores = f"select * exclude (predicted), predicted as num_predicted from {macro}({table})"
    return fetch(connection, f"{scores} order by gold desc, label")


def label_doubts(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Returns the labels on which the teacher contradicts gold with the highest confidence."""
    shown = "source_row, label, if(is_gold, 'yes', 'no') as gold, p, sentence1, sentence2"
    return fetch(connection, f"select {shown} from label_doubts({table}) limit {SHOWN_ROWS}")


def score_sql(target: Target, logits: str = "logits") -> str:
    """Returns the SQL expression of the score that logits stand for."""
    return f"{logits}[1]" if target.bins is None else f"expectation({logits}, {list(target.bins.values)!r})"


def score_limits(connection: duckdb.DuckDBPyConnection, tables: list[str], target: Target) -> tuple[float, float]:
    """The lowest and the highest score, of gold or predictions."""
    scores = " union all ".join(f"select {score_sql(target)} as predicted, score from {table}" for table in tables)
    ends = "least(min(predicted), min(score)) as low, greatest(max(predicted), max(score)) as high"
    row = fetch(connection, f"select {ends} from ({scores})")[0]
    low, high = float(row["low"]), float(row["high"])
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def score_grid(connection: duckdb.DuckDBPyConnection, pairs: str, limits: tuple[float, float]) -> Rows:
    """Counts the rows of a SELECT by cells of ``a`` and ``b``, over a square with these limits."""
    low, high = limits
    # The largest value lies exactly on the upper edge and belongs to the last cell.
    cell = f"greatest(least(floor(({{}} - {low!r}) / {high - low!r} * {CELLS}), {CELLS - 1}), 0)::int"
    return fetch(
        connection,
        f"with pairs as materialized ({pairs}) "
        f"select {cell.format('a')} as a, {cell.format('b')} as b, count(*) as n from pairs "
        "where a is not null and b is not null group by all order by all",
    )


def residuals(connection: duckdb.DuckDBPyConnection, table: str, target: Target, widest: float) -> Rows:
    """Counts rows by the predicted score less the gold score, from ``-widest`` to ``widest``."""
    return fetch(
        connection,
        f"select greatest(least(floor(({score_sql(target)} - score + {widest!r}) / {2 * widest!r} * {BINS}), "
        f"{BINS - 1}), 0)::int as bin, count(*) as n from {table} where score is not null group by all order by all",
    )


def farthest(connection: duckdb.DuckDBPyConnection, table: str, target: Target) -> Rows:
    """Returns the rows with the largest distance between predicted and gold score."""
    return fetch(
        connection,
        f"select source_row, score, {score_sql(target)} as predicted, sentence1, sentence2 from {table} "
        f"where score is not null order by abs(predicted - score) desc, source_row limit {SHOWN_ROWS}",
    )


def only_teacher_right(connection: duckdb.DuckDBPyConnection, target: Target) -> Rows:
    """Returns the rows on which only the student is wrong, or on which its error exceeds the teacher's most."""
    both = "teacher t join student s using (split, source_row, variant)"
    if target.has_classes:
        return fetch(
            connection,
            "select source_row, t.label, argmax(s.logits) as student, list_max(softmax(s.logits)) as confidence, "
            f"t.sentence1, t.sentence2 from {both} where argmax(t.logits) = t.label and argmax(s.logits) <> t.label "
            f"order by confidence desc, source_row limit {SHOWN_ROWS}",
        )
    teacher, student = score_sql(target, "t.logits"), score_sql(target, "s.logits")
    return fetch(
        connection,
        f"select source_row, t.score, {teacher} as teacher, {student} as student, t.sentence1, t.sentence2 from {both} "
        f"where t.score is not null order by abs({student} - t.score) - abs({teacher} - t.score) desc, source_row "
        f"limit {SHOWN_ROWS}",
    )


def changed_mind(connection: duckdb.DuckDBPyConnection, table: str, target: Target) -> Rows:
    """Returns the number of variants by origin, and the change of the teacher's outputs."""
    if target.has_classes:
        return fetch(connection, f"from variant_agreement({table})")
    if target.has_label_lists:
        both = _variants(table, "v.origin, o.logits as a, v.logits as b")
        measures = "avg((likely_labels(a) = likely_labels(b))::int) as agreement, avg(label_kl(a, b)) as kl"
        return fetch(
            connection, f"select origin, count(*) as n, {measures} from ({both}) group by origin order by origin"
        )
    pairs = variant_scores_sql(table, target)
    return fetch(
        connection,
        f"select origin, count(*) as n, avg(abs(b - a)) as moved from ({pairs}) group by origin order by origin",
    )


def variant_answers(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """Counts the teacher's predictions for variants by its predictions for their original rows."""
    answered = "argmax(o.logits) as a, argmax(v.logits) as b"
    return fetch(
        connection, f"select a, b, count(*) as n from ({_variants(table, answered)}) group by all order by all"
    )


def both_scores_sql(target: Target) -> str:
    """The SELECT of the scores of the tables ``teacher``, ``a``, and ``student``, ``b``."""
    pair = f"{score_sql(target, 't.logits')} as a, {score_sql(target, 's.logits')} as b"
    return f"select {pair} from teacher t join student s using (split, source_row, variant)"


def variant_scores_sql(table: str, target: Target) -> str:
    """The SELECT of the scores of variants, ``b``, and of the rows that they were made from, ``a``."""
    return _variants(table, f"v.origin, {score_sql(target, 'o.logits')} as a, {score_sql(target, 'v.logits')} as b")


def _variants(table: str, columns: str) -> str:
    joined = f"{table} v join {table} o using (split, source_row)"
    return f"select {columns} from {joined} where v.variant > 0 and o.variant = 0"


def _labels_sql(table: str) -> str:
    """The SELECT of the probability of each label of each row, and of whether it holds; it ends before its WHERE."""
    return (
        "select unnest(range(len(logits))) as number, unnest(sigmoid(logits)) as p, "
        f"list_contains(label, number) as is_gold from {table}"
    )
