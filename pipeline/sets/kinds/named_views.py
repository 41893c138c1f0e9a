"""Views on a set of examples with the user's own names: of columns, and of labels in place of their numbers."""

from collections.abc import Sequence

from pipeline.sets.record import SetRecord
from pipeline.sets.row_kind import View
from pipeline.sql.database import view_name
from pipeline.sql.read_only_query import quoted

# A matrix of more labels is too wide for any screen, and `confusion` lists its cells.
MOST_LABELS = 200
NAMED = """
create view "{name}" as
select columns('^(split|file_.*)$'), source_row, variant, {texts},
    {gold} as {gold_name}, {teacher} as {teacher_name}, {more} from "{rows}"
"""
CONFUSION = """
create view "{name}" as
select split, {gold} as gold, {counts}
from (select split, label, argmax(logits) as teacher from "{rows}" where label is not null)
group by split, label order by split, label
"""


def named_views(set_name: str, record: SetRecord) -> list[View]:
    """The views ``NAME_named``, and of classes ``NAME_confusion`` with a column for each label."""
    rows, target = view_name(set_name), record.target
    views = [_named(rows, record)]
    if target.has_classes and target.num_logits <= MOST_LABELS:
        counts = ", ".join(
            f"count(*) filter (teacher = {number}) as {_column(name)}" for number, name in enumerate(target.names)
        )
        sql = CONFUSION.format(name=f"{rows}_confusion", gold=_label(target.names, "label"), counts=counts, rows=rows)
        views.append(View(f"{rows}_confusion", sql))
    return views


def _named(rows: str, record: SetRecord) -> View:
    task, taken = record.task, ["split", "source_row", "variant"]
    usual = ("sentence1", "sentence2")[: 1 + record.is_pair]
    own = [names[0] for names in task.text_columns or ()] if task is not None else []
    texts = [
        f"{column} as {_free(name, column, taken)}"
        for column, name in zip(usual, own if len(own) == len(usual) else usual, strict=True)
    ]
    label = task.label_columns[0] if task is not None and task.label_columns else "gold"
    gold, teacher, more = _answers(record)
    gold_name = _free(label, "gold", taken)
    sql = NAMED.format(
        name=f"{rows}_named",
        texts=", ".join(texts),
        gold=gold,
        gold_name=gold_name,
        teacher=teacher,
        teacher_name=_free("teacher", "teacher_label", taken),
        more=f"{more[0]} as {_free(more[1], f'teacher_{more[1]}', taken)}",
        rows=rows,
    )
    return View(f"{rows}_named", sql)


def _answers(record: SetRecord) -> tuple[str, str, tuple[str, str]]:
    """Gold, the teacher's prediction, and a number about it with its name, as expressions of SQL."""
    target = record.target
    if target.has_classes:
        confidence = ("list_max(softmax(logits))", "confidence")
        return _label(target.names, "label"), _label(target.names, "argmax(logits)"), confidence
    if target.has_label_lists:
        names = _list(target.names)
        each = f"list_transform({{numbers}}, lambda k: {names}[k + 1])"
        certain = "list_min(list_transform(sigmoid(logits), lambda p: greatest(p, 1 - p)))"
        return each.format(numbers="label"), each.format(numbers="likely_labels(logits)"), (certain, "confidence")
    score = "logits[1]" if target.bins is None else f"expectation(logits, {list(target.bins.values)})"
    return "score", score, (f"abs({score} - score)", "difference")


def _label(names: Sequence[str], number: str) -> str:
    return f"{_list(names)}[{number} + 1]"


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, names))}]"


def _free(name: str, otherwise: str, taken: list[str]) -> str:
    """A user's name of a column in quotes, or another one if the view has such a column already."""
    # DuckDB compares names without regard to case.
    chosen = otherwise if name.lower() in taken else name
    taken.append(chosen.lower())
    return _column(chosen)


def _column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
