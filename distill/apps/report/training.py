"""The curves of a training."""

from typing import Any

from distill.apps.report import charts
from distill.apps.report.page import Picture, Section


def training_section(result: dict[str, Any], evaluation: dict[str, Any]) -> Section:
    """Loss and dev scores by epoch, with the epoch that was kept."""
    history, best = result["history"], result["best"]["epoch"]
    epochs = [entry["epoch"] for entry in history]
    losses = [entry["loss"] for entry in history]
    caption = f"Mean loss of the training rows. The circle is the epoch that was kept, {best}."
    rows = [{"epoch": epoch, "loss": loss} for epoch, loss in zip(epochs, losses, strict=True)]
    drawn = [Picture("Loss", charts.curves(epochs, {"training loss": losses}, "epoch", best), caption, rows)]
    if any(history[0]["metrics"].values()):
        drawn.append(_dev_scores(history, best, _levels(evaluation), result.get("chosen_by")))
    return Section("Training", pictures=tuple(drawn))


def _dev_scores(history: list[dict[str, Any]], best: int, levels: dict[str, float], chosen_by: str | None) -> Picture:
    epochs = [entry["epoch"] for entry in history]
    lines = {
        f"{split} {name}".replace("_", " "): [entry["metrics"][split][name] for entry in history]
        for split, metrics in history[0]["metrics"].items()
        for name in metrics
    }
    rows = [{"epoch": epoch} | {name: line[k] for name, line in lines.items()} for k, epoch in enumerate(epochs)]
    first = next(iter(lines))
    caption = f"Scores after each epoch. The circle is the epoch that was kept, by {chosen_by or first}."
    if levels:
        caption += f" Dashed: {first} of the teacher and of guessing."
    return Picture("Dev scores", charts.curves(epochs, lines, "epoch", best, levels), caption, rows)


def _levels(evaluation: dict[str, Any]) -> dict[str, float]:
    """What the teacher and guessing reach by the metric that decides."""
    names = {"teacher": "teacher", "guessing": "majority"}
    for parts in evaluation.values():
        return {name: next(iter(parts[key].values())) for name, key in names.items() if parts.get(key)}
    return {}
