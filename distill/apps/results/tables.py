"""``RESULTS.md``: the tables of what was measured. Nothing in it is typed by hand."""

import statistics
from collections.abc import Sequence
from typing import Any

from distill.apps.results.cells import MOST_ROWS, Cell
from pipeline.console import size

NOTHING = ""
PREFACE = f"""\
Scores times 100, mean ± standard deviation over seeds; in brackets the 95 % interval by bootstrap over the dev rows, of
several seeds the means of its ends. All are of dev rows, by which a student's best epoch was chosen, too; small tasks
have few of them, and differences within the intervals say nothing. Bold is the best but for the teacher.

- *with the teacher*: share of dev rows with the teacher's label; of a score, the correlation with the teacher's.
- *bytes*: weights, vocabulary and settings, as they are kept on disk.
- *sentences a second*: rows from text to label on one core, of the first {MOST_ROWS:,} dev rows at most, by the
  processor's time. Each was timed in turn with the first student; *times* its speed is what can be compared.
- *training*: seconds of the whole command, of a baseline those of fitting it; nothing where it was interrupted.
- *set*: bytes of the logit set that a student was trained from."""
COLUMNS = ("with the teacher", "parameters", "bytes", "sentences a second", "times", "training", "set")


def page(found: dict[str, Any]) -> str:
    """The page of what `results` has found."""
    machine, tasks = found["machine"], found["tasks"]
    parts = [
        "# Results",
        f"Written by `distill results` on {machine['processor']} with torch {machine['torch']}:",
        f"```sh\n{found['command']}\n```",
        summary(tasks),
        PREFACE,
        "\n".join(f"- **{name}**: {about}" for name, about in found["about"].items()),
        *(section(name, told) for name, told in tasks.items()),
    ]
    return "\n\n".join(parts) + "\n"


def summary(tasks: dict[str, Any]) -> str:
    """One table: tasks and systems, by the first metric on the first dev split."""
    systems = list(dict.fromkeys(name for told in tasks.values() for name in told["systems"]))
    rows = []
    for task, told in tasks.items():
        metric = told["metrics"][0]
        scores = {name: _score(cell, metric) for name, cell in told["systems"].items()}
        means = {name: _mean(cell, metric) for name, cell in told["systems"].items() if cell.get("kind") != "teacher"}
        best = max((mean for mean in means.values() if mean is not None), default=None)
        marked = {name: f"**{text}**" if text and means.get(name) == best else text for name, text in scores.items()}
        rows.append([f"[{task}](#{task})", metric, *(marked.get(name, NOTHING) for name in systems)])
    return _table(["task", "metric", *systems], rows)


def section(task: str, told: dict[str, Any]) -> str:
    """A task: its rows, its teacher, its table, its commands."""
    parts = [f"## {task}", _rows(told)]
    why = told.get("left_out") or told.get("failed")
    if why:
        return "\n\n".join([*parts, f"Not compared: {_line(why)}."])
    absent = [
        f"- {name}: {_line(cell.get('left_out') or cell['failed'])}"
        for name, cell in told["systems"].items()
        if "splits" not in cell
    ]
    commands = "```sh\n" + "\n".join(told["commands"]) + "\n```"
    return "\n\n".join([*parts, _teacher(told), _systems(told), *(["\n".join(absent)] if absent else []), commands])


def _rows(told: dict[str, Any]) -> str:
    counts = [
        f"{split} {part['rows']:,}" + (f" of {part['whole']:,}" if part["whole"] not in (None, part["rows"]) else "")
        for split, part in told["rows"].items()
    ]
    absent = f" Not here: {', '.join(told['absent'])}." if told["absent"] else ""
    return f"Rows: {', '.join(counts)}.{absent}"


def _teacher(told: dict[str, Any]) -> str:
    """Which teacher it is, and how it was chosen: by the first split that its epochs were scored on."""
    teacher, seeds = told["teacher"]["folder"], told["teacher"]["seeds"]
    start, absent = told["teacher"].get("from"), told["teacher"].get("absent_start")
    started = f", fine-tuned from `{start}`" if start else NOTHING
    why = f" It started from the encoder: no training rows of {absent} are here, from whose teacher it would start."
    chosen = NOTHING
    if seeds:
        split = next(iter(next(iter(seeds.values()))))
        scores = {seed: next(iter(metrics[split].items())) for seed, metrics in seeds.items()}
        of_each = ", ".join(f"{100 * value:.1f} with seed {seed}" for seed, (_, value) in scores.items())
        chosen = f", by {split} {next(iter(scores.values()))[0]}: {of_each}"
    sets = [
        f"`{name}` {size(part['bytes'])}"
        + (f" in {part['seconds']:,.0f} s" if part["seconds"] is not None else NOTHING)
        for name, part in told["sets"].items()
    ]
    student_seeds = ", ".join(map(str, told["seeds"]))
    made = f"Teacher `{teacher}`{started}{chosen}.{why if absent else NOTHING}"
    return f"{made} Sets: {', '.join(sets)}. Seeds of students: {student_seeds}."


def _systems(told: dict[str, Any]) -> str:
    measured = {name: cell for name, cell in told["systems"].items() if "splits" in cell}
    splits = list(next(iter(measured.values()))["splits"])
    places = [(split, metric) for split in splits for metric in told["metrics"]]
    titles = [metric if len(splits) == 1 else f"{split} {metric}" for split, metric in places]
    rows = [
        [
            name,
            *(_score(cell, metric, split) + _interval(cell, metric, split) for split, metric in places),
            *_cost(cell),
        ]
        for name, cell in measured.items()
    ]
    return _table(["system", *titles, *COLUMNS], rows)


def _cost(cell: Cell) -> list[str]:
    """What stands below `COLUMNS`."""
    seeds = next(iter(cell["splits"].values()))
    is_timed = "times_default" in cell
    seconds = [value for value in cell.get("training_seconds", ()) if value is not None]
    return [
        f"{100 * statistics.fmean(seed['fidelity'] for seed in seeds):.1f}",
        f"{cell['parameters']:,}",
        size(cell["bytes"]),
        f"{cell['sentences_per_second']:,.0f}" if is_timed else NOTHING,
        f"{cell['times_default']:.3g}" if is_timed else NOTHING,
        f"{statistics.fmean(seconds):,.0f} s" if seconds else NOTHING,
        size(cell["set_bytes"]) if "set_bytes" in cell else NOTHING,
    ]


def _values(cell: Cell, metric: str, split: str | None) -> list[float]:
    """The values of a metric by seed; none if there is no such score."""
    seeds = cell.get("splits", {"": []})
    return [seed["scores"][metric] for seed in seeds[split or next(iter(seeds))] if metric in seed["scores"]]


def _mean(cell: Cell, metric: str) -> float | None:
    values = _values(cell, metric, None)
    return statistics.fmean(values) if values else None


def _score(cell: Cell, metric: str, split: str | None = None) -> str:
    values = _values(cell, metric, split)
    if not values:
        return NOTHING
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else NOTHING
    return f"{100 * statistics.fmean(values):.1f}{deviation}"


def _interval(cell: Cell, metric: str, split: str) -> str:
    ends = [seed["intervals"][metric] for seed in cell["splits"][split] if metric in seed["intervals"]]
    if not ends:
        return NOTHING
    low, high = (100 * statistics.fmean(values) for values in zip(*ends, strict=True))
    return f" ({low:.1f} to {high:.1f})"


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
