"""``distill import``."""

from distill.commands.options import command_line, takes
from distill.commands.teacher import tell_of_scores
from pipeline import console
from pipeline.tasks.task import TRAIN
from teacher.answers.config import ImportConfig


@takes(ImportConfig)
def import_answers(config: ImportConfig) -> None:
    """Make a logit set of what any teacher, an LLM or another, answered in a file."""
    from teacher.answers.run import import_answers as write_set

    imported = write_set(config, command_line())
    record = imported.record
    if config.json_output:
        values = {name: getattr(imported, name) for name in ("unanswered", "unused", "missing")}
        console.print_json({"root": str(imported.root), "state": record.state, "scores": record.scores, **values})
        return
    left_out = {
        "rows of the file without an answer": imported.unanswered,
        "answers about no row of the task": imported.unused,
    }
    for what, count in left_out.items():
        if count:
            console.warn(f"{config.file}: {count:,} {what}; left out")
    rows = []
    for split, missing in imported.missing.items():
        scores = ", ".join(f"{name} {value:.4f}" for name, value in record.scores.get(split, {}).items())
        rows.append([split, record.rows_of(split), missing, scores])
    title = f"{imported.root}: {record.state}, {console.size(record.num_bytes)}"
    console.print_table(["split", "rows", "without an answer", "teacher against gold"], rows, title=title)
    tell_of_scores(imported.root)
    if TRAIN not in record.splits:
        console.warn(f"no row of {TRAIN!r} has an answer, so no student can learn from this set alone")
