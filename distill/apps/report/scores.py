"""The scores of a run, of each split, or of each task and split."""

from typing import Any

from distill.apps.report.page import Section, Table

FIDELITY = {
    "agreement": "answers as its teacher",
    "kl": "KL divergence from its teacher (nats)",
    "pearson": "Pearson with its teacher",
    "rmse": "root mean squared distance from its teacher",
}


def scores_section(evaluation: dict[str, Any]) -> Section:
    """Scores against gold and against the teacher, as `evaluate` gives them."""
    rows, close = [], []
    for split, parts in evaluation.items():
        for name, value in parts["gold"].items():
            low, high = parts.get("interval", {}).get(name, (None, None))
            others = (parts["teacher"].get(name), parts.get("majority", {}).get(name))
            rows.append((split, name.replace("_", " "), value, low, high, *others))
        close += [(split, FIDELITY.get(name, name), value) for name, value in parts["fidelity"].items()]
    columns = ("split", "metric", "student", "95 % from", "to", "teacher", "guessing")
    caption = "95 % from, to: where the score may lie, for dev rows chosen by chance. Guessing: always the same answer."
    tables = (
        Table("Against gold", columns, rows, caption),
        Table("Against its teacher", ("split", "", "student"), close),
    )
    return Section("Scores", tables=tuple(table for table in tables if table.rows))
