"""What augmentation has added to a set, and how much the teacher changes its mind over it."""

from distill.apps.report import pictures, questions
from distill.apps.report.page import Picture, Rows, Section, Table, clipped
from distill.apps.report.pictures import Connection
from pipeline.sets.record_parts import AugmentationRecord
from pipeline.tasks.target import Target

AXES = ("original row", "variant")


def variants_section(connection: Connection, table: str, target: Target, record: AugmentationRecord) -> Section:
    """Counts, the teacher's changes of mind by origin, and a few variants."""
    rows = questions.changed_mind(connection, table, target)
    draw = {"classes": [_answers], "labels": []}.get(target.kind, [_scores])
    drawn = tuple(picture(connection, table, target) for picture in draw)
    minds = _minds(rows) if target.has_labels else _moves(rows)
    tables = (minds, _sample(record)) if record.sample else (minds,)  # a set without text has no sample
    return Section(record.title, facts=record.lines(), pictures=drawn, tables=tables)


def _minds(rows: Rows) -> Table:
    columns = ("origin", "variants", "changes its mind", "KL divergence (nats)")
    cells = [(row["origin"], row["n"], f"{1 - row['agreement']:.2%}", row["kl"]) for row in rows]
    return Table("How often the teacher changes its mind", columns, cells)


def _moves(rows: Rows) -> Table:
    cells = [(row["origin"], row["n"], row["moved"]) for row in rows]
    return Table("How far the teacher's score moves", ("origin", "variants", "mean distance"), cells)


def _answers(connection: Connection, table: str, target: Target) -> Picture:
    caption = "What the teacher answers to variants, by its answer to the row that each was made from."
    counts = questions.variant_answers(connection, table)
    return pictures.matrix("Change of mind", counts, target, AXES, caption)


def _scores(connection: Connection, table: str, target: Target) -> Picture:
    pairs = questions.variant_scores_sql(table, target)
    limits = questions.score_limits(connection, [table], target)
    caption = "The teacher's score of each variant, by that of the row it was made from; on the line they are the same."
    return pictures.density(connection, pairs, limits, "Change of the score", AXES, caption)


def _sample(record: AugmentationRecord) -> Table:
    def text(sentences: tuple[str, ...]) -> str:
        return clipped(" ‖ ".join(sentences))

    rows = [
        (f"{row.source_row}:{row.variant}", row.origin, text(row.original), text(row.text)) for row in record.sample
    ]
    return Table("A few of them", ("row:variant", "origin", "original", "variant"), rows)
