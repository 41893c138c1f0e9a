"""The course of a training, as a table."""

from pipeline import console
from pipeline.training.run_record import Entry


def print_history(history: list[Entry], title: str) -> None:
    """Prints the loss of each entry of a history, and the metrics of the first dev split."""
    unit = next(iter(history[-1]))
    split, metrics = next(iter(history[-1]["metrics"].items()), ("", {}))
    rows = [[entry[unit], entry["loss"], *entry["metrics"].get(split, {}).values()] for entry in history]
    columns = [unit, "loss", *(f"{split} {name.replace('_', ' ')}" for name in metrics)]
    console.print_table(columns, rows, title=title)
