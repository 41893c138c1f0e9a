"""The page of a logit set: its facts, the quality of its teacher, and rows worth inspecting."""

from pathlib import Path
from typing import Any

from distill.apps.report import queries, split_charts
from distill.apps.report.page import Page, Picture, Rows, Section, Table, clipped
from distill.apps.report.split_charts import Connection
from pipeline.console import size
from pipeline.sets.files import require_shards
from pipeline.sets.kinds import kind_of
from pipeline.sets.kinds.examples import ExampleSet, columns_with_text
from pipeline.sets.open import usable_record
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import AugmentationRecord, Shard, TeacherRecord, reading
from pipeline.sql.read_only_query import open_files
from pipeline.tasks.target import Target

AXES = ("original row", "variant")


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
    teacher, tokenizer = record.teacher, record.tokenizer
    facts: dict[str, Any] = {
        "state": record.state,
        "teacher": f"{teacher.name}, {_known(teacher)} {teacher.sha256[:16]}…",
        "revision": teacher.revision,
        "precision": f"{record.precision}, {reading(record.windows, record.max_seq_length)}",
        "tokenizer": f"{tokenizer.vocabulary_size:,} words, {tokenizer.sha256[:16]}…",
        "source": record.source,
        "licence": record.licence,
        "size": f"{record.num_rows:,} rows, {size(record.num_bytes)} in {len(record.shards)} files",
        **{name: clipped(fact, 400) for signal in record.signals.stored for name, fact in signal.facts().items()},
        **_corpus_facts(record),
        "created": record.created,
        "command": record.command,
        "fingerprint": record.fingerprint,
        "written with": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "notes": "; ".join(record.notes),
    }
    return {name: value for name, value in facts.items() if value}


def _known(teacher: TeacherRecord) -> str:
    if teacher.is_imported:
        return "known only by its predictions, file"
    return f"{teacher.num_parameters:,} parameters, weights"


def _corpus_facts(record: SetRecord) -> dict[str, Any]:
    masking, corpus = record.masking, record.corpus
    if masking is None or corpus is None:
        return {}
    return {
        "masking": f"{masking.kind}, {masking.probability:.0%}, copies: {masking.num_copies}, seed {masking.seed}",
        "sequences": f"{corpus.packing} of {corpus.name} ({corpus.language}), from {corpus.min_seq_length} tokens",
    }


def _scores(record: SetRecord) -> Section:
    metrics = list(dict.fromkeys(name for scores in record.scores.values() for name in scores))
    rows = [
        (split, record.rows_of(split), *(record.scores.get(split, {}).get(name) for name in metrics))
        for split in _dev_first(record)
    ]
    columns = ("split", "rows", *(name.replace("_", " ") for name in metrics))
    text = "Measured against gold while the set was written. A teacher has often been trained on the train split."
    return Section("The teacher's scores", text, tables=(Table("By split", columns, rows),))


def _dev_first(record: SetRecord) -> list[str]:
    # Dev splits first: scores on training rows are not informative about a teacher that was fine-tuned on them.
    return sorted(record.splits, key=lambda split: split == "train")


def _row_sections(root: Path, record: SetRecord) -> list[Section]:
    require_shards(root, record, record.shards)
    tables = {split: f"split_{number}" for number, split in enumerate(_dev_first(record))}
    views = {table: _files(root, record.shards_of(split)) for split, table in tables.items()}
    columns = dict.fromkeys(views, columns_with_text(record))
    with open_files(views, columns) as connection:
        sections = [_split(connection, table, split, record) for split, table in tables.items()]
        augmentation = record.augmentation
        if augmentation and augmentation.split in tables:
            sections.append(variants_section(connection, tables[augmentation.split], record.target, augmentation))
    return sections


def _files(root: Path, shards: list[Shard]) -> list[Path]:
    return [root / shard.path for shard in shards]


def _split(connection: Connection, table: str, split: str, record: SetRecord) -> Section:
    target = record.target
    has_gold = queries.num_gold(connection, table, target) > 0
    drawn = split_charts.against_gold(connection, table, target, "teacher") if has_gold else []
    tables = []
    if not target.is_score:
        drawn += split_charts.certainty(connection, table, target)
    if target.kind in ("classes", "bins"):  # only these logits form a distribution over classes
        tables.append(_hardest(connection, table, record))
    if has_gold and target.has_labels:
        tables += split_charts.confused(connection, table, target, "teacher")
        tables.append(split_charts.label_scores(connection, table, target, "teacher"))
    if has_gold:
        suspects = {"classes": _likely_errors, "labels": _doubts}.get(target.kind, _farthest)
        tables.append(suspects(connection, table, record))
    text = "" if has_gold else "This split has no gold."
    return Section(f"Split {split}", text, pictures=tuple(drawn), tables=tuple(tables))


def _hardest(connection: Connection, table: str, record: SetRecord) -> Table:
    columns = {
        "row": "source_row",
        "gold": "label",
        "teacher": "teacher",
        "margin": "margin",
        **split_charts.text_headings(record),
    }
    if record.target.bins:
        del columns["gold"]
    rows = queries.hardest(connection, table)
    caption = "Rows with the smallest margin between the teacher's two most probable classes."
    return split_charts.row_table("Hardest rows", rows, columns, record.target.names, caption)


def _likely_errors(connection: Connection, table: str, record: SetRecord) -> Table:
    columns = {
        "row": "source_row",
        "gold": "label",
        "likely": "likely",
        "p(gold)": "p_label",
        "p(likely)": "p_class",
        **split_charts.text_headings(record),
    }
    rows, every = queries.label_errors(connection, table)
    part = "" if every == 1 else f" Only every {every:,}th row was examined."
    caption = (
        "Rows whose gold may be wrong: the teacher's probability of another class exceeds its average for rows "
        f"whose gold is that class (confident learning).{part}"
    )
    return split_charts.row_table("Likely label errors", rows, columns, record.target.names, caption)


def _doubts(connection: Connection, table: str, record: SetRecord) -> Table:
    columns = {
        "row": "source_row",
        "label": "label",
        "gold": "gold",
        "p(label)": "p",
        **split_charts.text_headings(record),
    }
    rows = queries.label_doubts(connection, table)
    caption = "Labels on which the teacher contradicts gold with the highest confidence. One of the two is wrong."
    return split_charts.row_table("Likely label errors", rows, columns, record.target.names, caption)


def _farthest(connection: Connection, table: str, record: SetRecord) -> Table:
    columns = {"row": "source_row", "gold": "score", "teacher": "predicted", **split_charts.text_headings(record)}
    rows = queries.farthest(connection, table, record.target)
    caption = "Rows with the largest difference between gold and the teacher. One of the two is probably wrong."
    return split_charts.row_table("Farthest from gold", rows, columns, (), caption)


def variants_section(connection: Connection, table: str, target: Target, record: AugmentationRecord) -> Section:
    """Returns counts, the changes of the teacher's prediction by origin, and a few variants."""
    rows = queries.changed_mind(connection, table, target)
    draw = {"classes": [_answers], "labels": []}.get(target.kind, [_scores_of_variants])
    drawn = tuple(picture(connection, table, target) for picture in draw)
    minds = _minds(rows) if target.has_labels else _moves(rows)
    tables = (minds, _sample(record)) if record.sample else (minds,)  # text-free sets have no sample
    return Section(record.title, facts=record.lines(), pictures=drawn, tables=tables)


def _minds(rows: Rows) -> Table:
    columns = ("origin", "variants", "prediction changes", "KL divergence (nats)")
    cells = [(row["origin"], row["n"], f"{1 - row['agreement']:.2%}", row["kl"]) for row in rows]
    return Table("How often the teacher's prediction changes", columns, cells)


def _moves(rows: Rows) -> Table:
    cells = [(row["origin"], row["n"], row["moved"]) for row in rows]
    return Table("How far the teacher's score changes", ("origin", "variants", "mean distance"), cells)


def _answers(connection: Connection, table: str, target: Target) -> Picture:
    caption = "Predictions of the teacher for variants, by its prediction for their original row."
    counts = queries.variant_answers(connection, table)
    return split_charts.matrix("Changed predictions", counts, target, AXES, caption)


def _scores_of_variants(connection: Connection, table: str, target: Target) -> Picture:
    pairs = queries.variant_scores_sql(table, target)
    limits = queries.score_limits(connection, [table], target)
    caption = "The teacher's score of each variant by the score of its original row. On the line, both are equal."
    return split_charts.density(connection, pairs, limits, "Change of the score", AXES, caption)


def _sample(record: AugmentationRecord) -> Table:
    def text(sentences: tuple[str, ...]) -> str:
        return clipped(" ‖ ".join(sentences))

    rows = [
        (f"{row.source_row}:{row.variant}", row.origin, text(row.original), text(row.text)) for row in record.sample
    ]
    return Table("A few of them", ("row:variant", "origin", "original", "variant"), rows)
