"""The page of a pretraining run, from its record alone."""

from distill.apps.report import charts
from distill.apps.report.page import Page, Picture, Section, Table
from pipeline.training.run_record import RunRecord

VALIDATION = {
    "gold_loss": "words",
    "teacher_loss": "teacher",
}
CONTROL = {
    "mean_features_loss": "with the mean features at every position",
    "other_features_loss": "with the features of a random other position",
    "unigram_loss": "the frequencies of training words",
    "context_gain": "what the context gives: frequencies less student",
}


def pretrained_page(name: str, record: RunRecord) -> Page:
    """Losses by step, and what was held out."""
    settings, history = record["settings"], record["result"]["history"]
    steps = [entry["step"] for entry in history]
    held_out: list[dict[str, float]] = [next(iter(entry["metrics"].values()), {}) for entry in history]
    losses = {"training": [entry["loss"] for entry in history]}
    losses |= {
        f"held out: {words}": [scores[key] for scores in held_out]
        for key, words in VALIDATION.items()
        if key in held_out[-1]
    }
    caption = "Cross-entropy (nats) with the masked words and with the teacher; in training with both."
    if "vector_loss" in settings:
        caption = f"Distance from the teacher's vectors ({settings['vector_loss']})."
    drawn = [_curves("Loss", steps, losses, caption)]
    if "masked_accuracy" in held_out[-1]:
        accuracy = {"masked accuracy": [scores["masked_accuracy"] for scores in held_out]}
        drawn.append(_curves("Masked accuracy", steps, accuracy, "Share of the held-out masked words that it guesses."))
    if "cosine" in held_out[-1]:
        names = ("cosine", "cosine_of_mean_vector", "similarity_correlation")
        close = {
            name.replace("_", " "): [scores[name] for scores in held_out] for name in names if name in held_out[-1]
        }
        drawn.append(
            _curves("Held-out vectors", steps, close, "Cosine with the teacher's vectors, and that of their mean.")
        )
    last = [(key.replace("_", " "), value) for key, value in held_out[-1].items()]
    end = Table("At the end, on held-out rows", ("", "student"), last)
    context = _context(held_out[-1], history[-1]["metrics"].get("control", {}))
    facts = {"logit set": record["logit_set"], "command": record["command"]}
    facts |= {key: value for key, value in settings.items() if value is not None} | {"codec": settings["codec"]["name"]}
    sections = (
        Section("Training", pictures=tuple(drawn), tables=(end, *context)),
        Section("What it is", facts=facts),
    )
    return Page("pretraining run", name, f"A student pretrained for {settings['steps']:,} steps.", sections)


def _context(scores: dict[str, float], control: dict[str, float]) -> list[Table]:
    """What the student owes to the context, if the run has told it."""
    if not control:
        return []
    lines = [("the student", scores["gold_loss"]), *((words, control[key]) for key, words in CONTROL.items())]
    return [Table("Guessing without the context", ("loss of the held-out masked words, nats", ""), lines)]


def _curves(title: str, steps: list[int], lines: dict[str, list[float]], caption: str) -> Picture:
    rows = [{"step": step} | {name: values[k] for name, values in lines.items()} for k, step in enumerate(steps)]
    return Picture(title, charts.curves(steps, lines, "step"), caption, rows)
