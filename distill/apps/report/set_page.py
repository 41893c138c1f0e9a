"""The page of a logit set: its facts, the quality of its teacher, and rows worth inspecting."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from distill.apps.report import charts, predictions
from distill.apps.report.page import Page, Picture, Rows, Section, Table, clipped
from distill.apps.report.predictions import SHOWN_ROWS, Predictions, row_table, text_headings
from pipeline.console import size
from pipeline.sets.card import split_table
from pipeline.sets.file_columns import with_file_columns
from pipeline.sets.files import require_shards
from pipeline.sets.kinds import kind_of
from pipeline.sets.kinds.examples import ORIGINALS, ExampleSet, columns_with_text
from pipeline.sets.open import usable_record
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import AugmentationRecord, reading
from pipeline.sets.signals.rows import logits_of
from pipeline.sql.read_only_query import open_files, select, to_arrow
from pipeline.tasks.metrics import confusion_of_labels, scores_by_label
from pipeline.tasks.target import Target, gold_arrays, predicted_scores
from pipeline.tasks.task import TRAIN

AXES = ("original row", "variant")
DECIMALS = 10
MOST_SORTED_ROWS = 200_000  # limit for the macro `label_errors`, which holds its rows in memory
Connection = duckdb.DuckDBPyConnection


def set_page(root: Path, allow_unverified: bool = False) -> Page:
    """Returns the page of a set, from its record and, for a set of a task, from its rows.

    Raises:
        IntegrityError: if the set is damaged, or unverified without the permission to use it.
    """
    record = usable_record(root, allow_unverified)
    about = (Section("What it is", facts=_facts(record)), _scores(record))
    rows = _row_sections(root, record) if record.kind == ExampleSet.row_kind.name else ()
    return Page(kind_of(record).page_title, record.name, kind_of(record).summary(record), (*about, *rows))


def _facts(record: SetRecord) -> dict[str, Any]:
    teacher, tokenizer, masking, corpus = record.teacher, record.tokenizer, record.masking, record.corpus
    known = "known only by its predictions, file"
    if not teacher.is_imported:
        known = f"{teacher.num_parameters:,} parameters, weights"
    facts: dict[str, Any] = {
        "state": record.state,
        "teacher": f"{teacher.name}, {known} {teacher.sha256[:16]}…",
        "revision": teacher.revision,
        "precision": f"{record.precision}, {reading(record.windows, record.max_seq_length)}",
        "tokenizer": f"{tokenizer.vocabulary_size:,} words, {tokenizer.sha256[:16]}…",
        "source": record.source,
        "licence": record.licence,
        "size": f"{record.num_rows:,} rows, {size(record.num_bytes)} in {len(record.shards)} files",
        **{name: clipped(fact, 400) for signal in record.signals.stored for name, fact in signal.facts().items()},
        "masking": masking
        and f"{masking.kind}, {masking.probability:.0%}, copies: {masking.num_copies}, seed {masking.seed}",
        "sequences": masking
        and corpus
        and f"{corpus.packing} of {corpus.name} ({corpus.language}), from {corpus.min_seq_length} tokens",
        "created": record.created,
        "command": record.command,
        "fingerprint": record.fingerprint,
        "written with": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "notes": "; ".join(record.notes),
    }
    return {name: value for name, value in facts.items() if value}


def _scores(record: SetRecord) -> Section:
    columns, rows = split_table(record)
    dev_first = sorted(map(tuple, rows), key=lambda row: row[0] == TRAIN)
    text = "Measured against gold while the set was written. A teacher has often been trained on the train split."
    return Section("The teacher's scores", text, tables=(Table("By split", tuple(columns), dev_first),))


def _dev_first(record: SetRecord) -> list[str]:
    # Dev splits first: scores on training rows are not informative about a teacher that was fine-tuned on them.
    return sorted(record.splits, key=lambda split: split == TRAIN)


def _row_sections(root: Path, record: SetRecord) -> list[Section]:
    require_shards(root, record, record.shards)
    tables = {split: f"split_{number}" for number, split in enumerate(_dev_first(record))}
    views = {table: [root / shard.path for shard in record.shards_of(split)] for split, table in tables.items()}
    columns = dict.fromkeys(views, columns_with_text(record))
    with open_files(views, columns) as connection:
        sections = [_split(connection, table, split, record, root) for split, table in tables.items()]
        augmentation = record.augmentation
        if augmentation and augmentation.split in tables:
            sections.append(_variants(connection, tables[augmentation.split], record.target, augmentation))
    return sections


def _split(connection: Connection, table: str, split: str, record: SetRecord, root: Path) -> Section:
    place = partial(with_file_columns, root, split)
    target, teacher = record.target, read_predictions(connection, table, record.target)
    known = teacher.with_gold
    counts = confusion_of_labels(target, known.logits_NC, known.label_N)
    by_label = scores_by_label(target, known.logits_NC, known.label_N)
    drawn, tables = predictions.against_gold([known], counts, {"teacher": by_label})
    if not target.is_score:
        drawn += predictions.certainty(teacher)
    if target.kind in ("classes", "bins"):  # only these logits form a distribution over classes
        tables.insert(0, HARDEST.shown(connection, table, record, len(known), place))
    if len(known):
        tables.append(SUSPECTS[target.kind].shown(connection, table, record, len(known), place))
    text = "" if len(known) else "This split has no gold."
    return Section(f"Split {split}", text, pictures=tuple(drawn), tables=tuple(tables))


def read_predictions(connection: Connection, table: str, target: Target) -> Predictions:
    """Returns the teacher's predictions for the rows of a table that are no variants."""
    rows = to_arrow(select(connection, f"select label, score, logits from {table} where {ORIGINALS}"))
    return Predictions("teacher", target, logits_of(rows, target.num_logits), *gold_arrays(target, rows))


def _fetch(connection: Connection, sql: str) -> Rows:
    """Returns the rows of one SELECT, with floats rounded to ten decimals: the last bits of sums depend on threads."""
    rows: Rows = to_arrow(select(connection, sql)).to_pylist()
    return [{name: round(v, DECIMALS) if isinstance(v, float) else v for name, v in row.items()} for row in rows]


@dataclass(frozen=True)
class Ranking:
    """Rows of a split that are worth inspecting.

    Attributes:
        title: of their table.
        columns: headings of the columns that SQL returns. Those of the texts are added.
        sql: the query, with ``{table}``, ``{every}`` and ``{score}``.
        caption: how to read the table.
    """

    title: str
    columns: dict[str, str]
    sql: str
    caption: str

    def rows(self, connection: Connection, table: str, target: Target, every: int = 1) -> Rows:
        """Returns the first rows. ``every`` is the stride of the examined rows, if they are too many."""
        filled = self.sql.format(table=table, every=every, score=_score_sql(target))
        return _fetch(connection, f"{filled} limit {SHOWN_ROWS}")

    def shown(
        self, connection: Connection, table: str, record: SetRecord, num_rows: int, place: Callable[[Rows], Rows]
    ) -> Table:
        """Returns the table for a split with so many rows with gold. ``place`` adds the columns of the user's file."""
        # A fixed stride instead of a random sample gives the same report every time.
        every = max(1, -(-num_rows // MOST_SORTED_ROWS))
        is_part = "{every}" in self.sql and every > 1
        caption = self.caption + (f" Only every {every:,}th row was examined." if is_part else "")
        rows = place(self.rows(connection, table, record.target, every))
        columns = self.columns | text_headings(record)
        if record.target.bins:
            columns = {name: column for name, column in columns.items() if column != "label"}
        return row_table(self.title, rows, columns, record.target.names, caption)


HARDEST = Ranking(
    "Hardest rows",
    {"row": "source_row", "gold": "label", "teacher": "teacher", "margin": "margin"},
    f"from hardest({{table}}) where {ORIGINALS}",
    "Rows with the smallest margin between the teacher's two most probable classes.",
)
LABEL_ERRORS = Ranking(
    "Likely label errors",
    {"row": "source_row", "gold": "label", "likely": "likely", "p(gold)": "p_label", "p(likely)": "p_class"},
    "with looked_at as (from {table} where source_row % {every} = 0) from label_errors(looked_at)",
    "Rows whose gold may be wrong: the teacher's probability of another class exceeds its average for rows whose gold "
    "is that class (confident learning).",
)
LABEL_DOUBTS = Ranking(
    "Likely label errors",
    {"row": "source_row", "label": "label", "gold": "gold", "p(label)": "p"},
    "select source_row, label, if(is_gold, 'yes', 'no') as gold, p, sentence1, sentence2 from label_doubts({table})",
    "Labels on which the teacher contradicts gold with the highest confidence. One of the two is wrong.",
)
FARTHEST = Ranking(
    "Farthest from gold",
    {"row": "source_row", "gold": "score", "teacher": "predicted"},
    "select source_row, score, {score} as predicted, sentence1, sentence2 from {table} where score is not null "
    "order by abs(predicted - score) desc, source_row",
    "Rows with the largest difference between gold and the teacher. One of the two is probably wrong.",
)
SUSPECTS = {"classes": LABEL_ERRORS, "labels": LABEL_DOUBTS, "bins": FARTHEST, "score": FARTHEST}


def _score_sql(target: Target, logits: str = "logits") -> str:
    """Returns the SQL expression of the score that logits stand for."""
    return f"{logits}[1]" if target.bins is None else f"expectation({logits}, {list(target.bins.values)!r})"


def _variants(connection: Connection, table: str, target: Target, record: AugmentationRecord) -> Section:
    """Returns counts, the changes of the teacher's prediction by origin, and a few variants."""
    rows = changed_mind(connection, table, target)
    pictures = () if target.has_label_lists else (_change(connection, table, target),)
    columns: tuple[str, ...] = ("origin", "variants", "mean distance")
    title = "How far the teacher's score changes"
    cells = [tuple(row.values()) for row in rows]
    if target.has_labels:
        columns = ("origin", "variants", "prediction changes", "KL divergence (nats)")
        title = "How often the teacher's prediction changes"
        cells = [(row["origin"], row["n"], f"{1 - row['agreement']:.2%}", row["kl"]) for row in rows]
    tables = [Table(title, columns, cells)]
    if record.sample:  # text-free sets have no sample
        sample = [
            (f"{row.source_row}:{row.variant}", row.origin, *(clipped(" ‖ ".join(t)) for t in (row.original, row.text)))
            for row in record.sample
        ]
        tables.append(Table("A few of them", ("row:variant", "origin", "original", "variant"), sample))
    return Section(record.title, facts=record.lines(), pictures=pictures, tables=tuple(tables))


def changed_mind(connection: Connection, table: str, target: Target) -> Rows:
    """Returns the number of variants by origin, and the change of the teacher's outputs."""
    if target.has_classes:
        return _fetch(connection, f"from variant_agreement({table})")
    measures = "avg((likely_labels(a) = likely_labels(b))::int) as agreement, avg(label_kl(a, b)) as kl"
    if not target.has_label_lists:
        measures = f"avg(abs({_score_sql(target, 'b')} - {_score_sql(target, 'a')})) as moved"
    pairs = _originals_and_variants(table)
    return _fetch(connection, f"select origin, count(*) as n, {measures} {pairs} group by origin order by origin")


def _originals_and_variants(table: str) -> str:
    """The FROM of the logits of variants, ``b``, and of the rows that they were made from, ``a``."""
    joined = f"{table} v join {table} o using (split, source_row)"
    chosen = "where v.variant > 0 and o.variant = 0"
    return f"from (select v.origin, o.logits as a, v.logits as b from {joined} {chosen}) pairs"


def _change(connection: Connection, table: str, target: Target) -> Picture:
    """Draws the teacher's predictions for variants by those for their original rows."""
    read = to_arrow(select(connection, f"select a, b {_originals_and_variants(table)}"))
    a_NC, b_NC = (logits_of(read.select([name]).rename_columns(["logits"]), target.num_logits) for name in "ab")
    if target.has_classes:
        caption = "Predictions of the teacher for variants, by its prediction for their original row."
        counts = confusion_of_labels(target, b_NC, a_NC.argmax(axis=1))
        return charts.matrix("Changed predictions", counts, target.names, AXES, caption)
    a_N, b_N = predicted_scores(target, a_NC), predicted_scores(target, b_NC)
    limits = predictions.limits_of(a_N, b_N)
    caption = "The teacher's score of each variant by the score of its original row. On the line, both are equal."
    return charts.density("Change of the score", a_N, b_N, limits, AXES, caption)
