"""The page of a pretraining run, from its record alone."""

from pipeline.report import charts
from pipeline.report.page import Page, Picture, Section, Table
from pipeline.training.run_record import RunRecord

VALIDATION = {
    "gold_loss": "words",
    "teacher_loss": "teacher",
}


def pretrained_page(name: str, record: RunRecord) -> Page:
    """Losses and masked accuracy by step."""
    settings, history = record["settings"], record["result"]["history"]
    steps = [entry["step"] for entry in history]
    held_out = [entry["metrics"]["validation"] for entry in history]
    losses = {"training": [entry["loss"] for entry in history]}
    losses |= {
        f"held out: {words}": [scores[key] for scores in held_out]
        for key, words in VALIDATION.items()
        if key in held_out[-1]
    }
    caption = "Cross-entropy (nats) with the masked words and with the teacher; in training with both."
    drawn = [_curves("Loss", steps, losses, caption)]
    if "masked_accuracy" in held_out[-1]:
        accuracy = {"masked accuracy": [scores["masked_accuracy"] for scores in held_out]}
        drawn.append(_curves("Masked accuracy", steps, accuracy, "Share of the held-out masked words that it guesses."))
    last = [(key.replace("_", " "), value) for key, value in held_out[-1].items()]
    end = Table("At the end, on held-out rows", ("", "student"), last)
    facts = {"logit set": record["logit_set"], "command": record["command"]}
    facts |= {key: value for key, value in settings.items() if value is not None} | {"codec": settings["codec"]["name"]}
    sections = (
        Section("Training", pictures=tuple(drawn), tables=(end,)),
        Section("What it is", facts=facts),
    )
    return Page("pretraining run", name, f"A student pretrained for {settings['steps']:,} steps.", sections)


def _curves(title: str, steps: list[int], lines: dict[str, list[float]], caption: str) -> Picture:
    rows = [{"step": step} | {name: values[k] for name, values in lines.items()} for k, step in enumerate(steps)]
    return Picture(title, charts.curves(steps, lines, "step"), caption, rows)
