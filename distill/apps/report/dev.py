"""What a student and its teacher say of the same dev rows, side by side."""

from pathlib import Path

import pyarrow as pa

from distill.apps.report import pictures, questions
from distill.apps.report.certainty import cascade
from distill.apps.report.page import Picture, Section, Table
from distill.apps.report.pictures import TEXTS, Connection
from pipeline.errors import IntegrityError
from pipeline.sets.reader import KEYS, ORIGINALS, ExampleSet, keys_sha256
from pipeline.sql.gate import open_files
from pipeline.tasks.target import Target
from student.data import Examples
from student.evaluate import dev_examples, student_logits
from student.model.model import Student, default_device

COLUMNS = (*KEYS, "label", "score", "logits", "sentence1", "sentence2")


def dev_sections(run: Path, logit_set: ExampleSet) -> list[Section]:
    """A section per dev split, or one that says that there is none."""
    if set(logit_set.splits) == {"train"}:
        return [Section("Dev splits", "The set has none.")]
    student = Student.load(run).to(default_device())
    return [
        _section(split, _teacher_table(logit_set, split, rows), student, rows)
        for split, rows in dev_examples(student.config, logit_set).items()
    ]


def _teacher_table(logit_set: ExampleSet, split: str, rows: Examples) -> pa.Table:
    """The same rows with their texts."""
    table = logit_set.read(split, COLUMNS, ORIGINALS)
    if keys_sha256(table) != rows.keys_sha256:
        raise IntegrityError(f"{logit_set.root}: the rows of {split!r} changed while they were read; try again")
    return table


def _section(split: str, teacher: pa.Table, student: Student, rows: Examples) -> Section:
    logits_NC = student_logits(student, rows)
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits_NC.reshape(-1)), logits_NC.shape[1])
    target = student.config.target
    with open_files({}) as connection:
        connection.register("teacher", teacher)
        connection.register("student", teacher.set_column(teacher.schema.get_field_index("logits"), "logits", column))
        has_gold = questions.num_gold(connection, "teacher", target) > 0
        drawn = {"classes": _classes, "labels": _labels}.get(target.kind, _scores)(connection, target, has_gold)
        if has_gold and target.kind == "classes":
            drawn.append(cascade(logits_NC, rows))
        tables = _tables(connection, target) if has_gold else []
    return Section(f"Split {split}", pictures=tuple(drawn), tables=tuple(tables))


def _tables(connection: Connection, target: Target) -> list[Table]:
    tables = pictures.confused(connection, "student", target, "student")
    if target.has_labels:
        tables += [pictures.label_scores(connection, who, target, who) for who in ("student", "teacher")]
    return tables if target.kind == "labels" else [*tables, _only_teacher_right(connection, target)]


def _classes(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    caption = "What the student answers where the teacher gives an answer: their number, and their share of the answer."
    answers = questions.answers(connection, "teacher", "student")
    both = pictures.matrix("Student against teacher", answers, target, ("teacher", "student"), caption)
    if not has_gold:
        return [both]
    reliability = [pictures.reliability(connection, who, who) for who in ("teacher", "student")]
    return [*reliability, pictures.confusion(connection, "student", target, "student"), both]


def _labels(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    whose = ("teacher", "student") if has_gold else ()
    return [pictures.label_reliability(connection, who, who) for who in whose]


def _scores(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    limits = questions.score_limits(connection, ["teacher", "student"], target)
    pairs = questions.both_scores_sql(target)
    axes = ("score by the teacher", "score by the student")
    caption = "A cell's colour is the stronger the more rows lie in it. On the dashed line the two say the same."
    both = pictures.density(connection, pairs, limits, "Student against teacher", axes, caption)
    if not has_gold:
        return [both]
    scores = [pictures.scores(connection, who, target, who, limits) for who in ("teacher", "student")]
    return [*scores, both, pictures.residuals(connection, "student", target, "student", limits)]


def _only_teacher_right(connection: Connection, target: Target) -> Table:
    rows = questions.only_teacher_right(connection, target)
    if target.kind == "classes":
        columns = {"row": "source_row", "gold": "label", "student": "student", "confidence": "confidence", **TEXTS}
        caption = "Rows that the teacher has right and the student wrong, those first of which the student is surest."
    else:
        columns = {"row": "source_row", "gold": "score", "teacher": "teacher", "student": "student", **TEXTS}
        caption = "Rows on which the student is farther from gold than the teacher, the farthest first."
    return pictures.row_table("The student fails, the teacher does not", rows, columns, target.names, caption)
