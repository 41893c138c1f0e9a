"""What a training can be watched by: a file of metrics that anyone can read, and TensorBoard if it is asked for."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.config import ReportTo
from pipeline.files import write_text
from pipeline.training.run_record import Entry

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
COUNTS = ("epoch", "step")


def flat(entry: Entry) -> dict[str, float]:
    """An entry of a history in one level: ``epoch`` or ``step``, ``loss``, and a number for each ``SPLIT/METRIC``."""
    numbers = {name: value for name, value in entry.items() if name != "metrics"}
    scores = {f"{split}/{name}": v for split, metrics in entry["metrics"].items() for name, v in metrics.items()}
    return numbers | scores


def write_metrics(folder: Path, history: Sequence[Entry]) -> None:
    """Writes a line of JSON for each entry of a history."""
    write_text(folder / METRICS_FILE, "".join(json.dumps(flat(entry)) + "\n" for entry in history))


@contextmanager
def tracker(report_to: ReportTo, folder: Path) -> Iterator[Callable[[Entry], None]]:
    """What is to be called with each new entry of a history."""
    if report_to == "none":
        yield lambda entry: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / TENSORBOARD_FOLDER)) as writer:

        def track(entry: Entry) -> None:
            step = next(entry[name] for name in COUNTS if name in entry)
            for name, value in flat(entry).items():
                if name not in COUNTS:
                    writer.add_scalar(name, value, step)
            writer.flush()

        yield track
