"""Runs a whole comparison: computes what is missing, and writes ``RESULTS.md`` again after each task."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from distill.apps.app_settings import ExperimentSettings
from distill.apps.cells import Command, weights_of
from distill.apps.experiments.baselines import BASELINES, Baseline, distil
from distill.apps.experiments.experiment import as_file
from distill.apps.experiments.measure import FIDELITY, METRIC, MOST_ROWS, Cell, TaskCells
from distill.apps.experiments.plan import TaskPlan, plans
from distill.apps.timing import processor
from pipeline import console
from pipeline.console import size
from pipeline.errors import DistillError
from pipeline.files import make_folder, write_text
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet

NOTHING = ""
PREFACE = f"""\
Scores times 100, mean ± standard deviation over seeds. The 95 % bootstrap interval over rows is in brackets, with
several seeds the means of its ends. Where resamples do not differ, as those of rows that are all right, accuracy has
the exact interval (Clopper and Pearson) and other scores have no interval. Small tasks have few rows, and differences
within the intervals are not significant. Bold is the best score except the teacher's. Held-out rows are training rows
from which no student and no baseline learns. They select a student's epoch, so they favour students a little, and they
may share a sentence with rows that were learned. Teachers that `distill sweep` has not fine-tuned may have learned
them. Where nothing is held out, dev rows select the epoch.

- *minus*: difference from the first student on the same rows, ± one standard error over rows (not over seeds).
- *with the teacher*: share of rows with the teacher's label, for scores the correlation with the teacher's.
- *bytes*: weights, vocabulary and settings on disk.
- *sentences a second*: rows from text to label on one core, at most {MOST_ROWS:,} of the first split, in CPU time. Each
  system was timed in turn with the first student. Compare *times*, the speed relative to it.
- *training*: seconds of the whole command, for baselines of the fit. It is empty after an interruption.
- *set*: bytes of the logit set that a student was trained from."""
COLUMNS = ("parameters", "bytes", "sentences a second", "times", "training", "set")


def page(found: dict[str, Any]) -> str:
    """The page of what `run_experiment` has found."""
    machine, tasks = found["machine"], found["tasks"]
    parts = [
        "# Results",
        f"Written by `distill sweep` on {machine['processor']} with torch {machine['torch']}:",
        f"```sh\n{found['command']}\n```",
        summary(tasks),
        PREFACE,
        "\n".join(f"- **{name}**: {about}" for name, about in found["about"].items()),
        *(section(name, entry) for name, entry in tasks.items()),
    ]
    return "\n\n".join(parts) + "\n"


def summary(tasks: dict[str, Any]) -> str:
    """One table: tasks and systems, by the first metric on the first dev split."""
    systems = list(dict.fromkeys(name for entry in tasks.values() for name in entry["systems"]))
    rows = []
    for task, entry in tasks.items():
        metric = entry["metrics"][0]
        scores = {name: _score(cell, metric) for name, cell in entry["systems"].items()}
        means = {name: _mean(cell, metric) for name, cell in entry["systems"].items() if cell.get("kind") != "teacher"}
        # The teacher is left out: it is expected to win, and bold should mark the best usable system.
        best = max((mean for mean in means.values() if mean is not None), default=None)
        marked = {name: f"**{text}**" if text and means.get(name) == best else text for name, text in scores.items()}
        rows.append([f"[{task}](#{task})", metric, *(marked.get(name, NOTHING) for name in systems)])
    return _table(["task", "metric", *systems], rows)


def section(task: str, entry: dict[str, Any]) -> str:
    """A task: its rows, its teacher, its table, its commands."""
    parts = [f"## {task}", _rows(entry)]
    why = entry.get("left_out") or entry.get("failed")
    if why:
        return "\n\n".join([*parts, f"Not compared: {_line(why)}."])
    absent = [
        f"- {name}: {_line(cell.get('left_out') or cell['failed'])}"
        for name, cell in entry["systems"].items()
        if "splits" not in cell
    ]
    commands = "```sh\n" + "\n".join(entry["commands"]) + "\n```"
    tables = [_scores(entry), _costs(entry), *([_slices(entry)] if "slices" in entry else [])]
    return "\n\n".join([*parts, _teacher(entry), *tables, *(["\n".join(absent)] if absent else []), commands])


def _rows(entry: dict[str, Any]) -> str:
    counts = [
        f"{split} {part['rows']:,}" + (f" of {part['whole']:,}" if part["whole"] not in (None, part["rows"]) else "")
        for split, part in entry["rows"].items()
    ]
    absent = f" Not here: {', '.join(entry['absent'])}." if entry["absent"] else ""
    return f"Rows: {', '.join(counts)}.{absent}"


def _teacher(entry: dict[str, Any]) -> str:
    """Which teacher it is, and how it was chosen: by the first split that its epochs were scored on."""
    teacher, seeds = entry["teacher"]["folder"], entry["teacher"]["seeds"]
    start, absent = entry["teacher"].get("from"), entry["teacher"].get("absent_start")
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
        for name, part in entry["sets"].items()
    ]
    student_seeds = ", ".join(map(str, entry["seeds"]))
    made = f"Teacher `{teacher}`{started}{chosen}.{why if absent else NOTHING}"
    return f"{made} Sets: {', '.join(sets)}. Seeds of students: {student_seeds}."


def _measured_systems(entry: dict[str, Any]) -> dict[str, Cell]:
    return {name: cell for name, cell in entry["systems"].items() if "splits" in cell}


def _scores(entry: dict[str, Any]) -> str:
    """For each split: the metrics, and how often a system agrees with the teacher, with differences."""
    measured = _measured_systems(entry)
    splits = list(next(iter(measured.values()))["splits"])
    minus, (metric, *others) = f"minus {entry['first']}", entry["metrics"]
    of_split = (metric, minus, *others, "with the teacher", f"with the teacher, {minus}")
    titles = [title if len(splits) == 1 else f"{split} {title}" for split in splits for title in of_split]
    rows = [[name, *(text for split in splits for text in _on(cell, split, entry))] for name, cell in measured.items()]
    return _table(["system", *titles], rows)


def _on(cell: Cell, split: str, entry: dict[str, Any]) -> list[str]:
    if split not in cell["splits"]:
        return [NOTHING] * (len(entry["metrics"]) + 3)
    differences = cell.get("differences", {}).get(split, {})
    fidelity = statistics.fmean(seed["fidelity"] for seed in cell["splits"][split])
    scores = [_score(cell, metric, split) + _interval(cell, metric, split) for metric in entry["metrics"]]
    agreement = [f"{100 * fidelity:.1f}", _difference(differences.get(FIDELITY))]
    return [scores[0], _difference(differences.get(METRIC)), *scores[1:], *agreement]


def _difference(one: dict[str, float] | None) -> str:
    if not one:
        return NOTHING
    error = "" if one["error"] is None else f" ± {100 * one['error']:.1f}"
    return f"{100 * one['mean']:+.1f}{error}"


def _slices(entry: dict[str, Any]) -> str:
    """Kinds of rows, and how often each system agrees with the teacher on them."""
    slices = entry["slices"]
    shares = [
        [name, *(f"{100 * values[kind]:.1f}" for kind in slices["rows"])] for name, values in slices["fidelity"].items()
    ]
    titles = [f"{kind} ({count:,})" for kind, count in slices["rows"].items()]
    return f"With the teacher, on kinds of {slices['split']} rows:\n\n{_table(['system', *titles], shares)}"


def _costs(entry: dict[str, Any]) -> str:
    measured = _measured_systems(entry)
    return _table(["system", *COLUMNS], [[name, *_cost(cell)] for name, cell in measured.items()])


def _cost(cell: Cell) -> list[str]:
    """What stands below `COLUMNS`."""
    is_timed = "times_default" in cell
    seconds = [value for value in cell.get("training_seconds", ()) if value is not None]
    return [
        f"{cell['parameters']:,}",
        size(cell["bytes"]),
        f"{cell['sentences_per_second']:,.0f}" if is_timed else NOTHING,
        f"{cell['times_default']:.3g}" if is_timed else NOTHING,
        f"{statistics.fmean(seconds):,.0f} s" if seconds else NOTHING,
        size(cell["set_bytes"]) if "set_bytes" in cell else NOTHING,
    ]


def _values(cell: Cell, metric: str, split: str | None) -> list[float]:
    """The values of a metric by seed, or none if there is no such score."""
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
    seeds = cell["splits"][split]
    ends = [seed["intervals"][metric] for seed in seeds if metric in seed["intervals"]]
    if len(ends) < len(seeds) or not ends:
        return NOTHING
    # Intervals of several seeds are averaged: they describe the choice of dev rows, which all seeds share.
    low, high = (100 * statistics.fmean(values) for values in zip(*ends, strict=True))
    return f" ({low:.1f} to {high:.1f})"


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


EXTRA = "pip install 'distill-offline[teacher,results]'"
Results = dict[str, Any]


def run_experiment(config: ExperimentSettings, command: str) -> Results:
    """Makes or completes a table of results.

    Returns:
        The content of ``results.json``, of which ``RESULTS.md`` is made: ``command``, ``machine``, ``about`` the
        systems, and ``tasks`` by name. Failures are listed there as ``failed`` and repeated the next time.

    Raises:
        ConfigError: if the experiment or a task is wrong.
        DataError: if a task's rows are not there.
    """
    all_plans = plans(config)
    make_folder(config.output_dir)
    found: Results = {
        "command": command,
        "machine": {"processor": processor(), "torch": torch.__version__},
        "about": {name: baseline.about for name, baseline in BASELINES.items()},
        "tasks": {},
    }
    for plan in all_plans:
        found["tasks"][plan.task.name] = _task(plan)
        # Written after each task: a comparison takes hours, and its first tables are useful before the last.
        write_text(config.output_dir / "results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        write_text(config.output_dir / "RESULTS.md", page(found))
    return found


def planned(config: ExperimentSettings) -> list[str]:
    """The commands that would be run, each once, as one types them; none that has nothing to do is left out."""
    trained = [plan for plan in plans(config) if "train" in plan.source.splits]
    return list(dict.fromkeys(command.line for plan in trained for command in plan.all_commands()))


def _task(plan: TaskPlan) -> Results:
    """All results of a task. A failure does not prevent the others."""
    splits, sizes = plan.source.splits, plan.task.splits
    entry: Results = {
        "metrics": list(plan.task.metrics),
        "rows": {split: {"rows": rows.num_rows, "whole": sizes[split]} for split, rows in splits.items()},
        "absent": [split for split in sizes if split not in splits],
        "systems": {},
    }
    if "train" not in splits:
        return entry | {"left_out": "there are no training rows, so nothing can be trained"}
    try:
        return entry | _measured(plan)
    except DistillError as error:
        console.error(str(error))
        return entry | {"failed": str(error)}


def _measured(plan: TaskPlan) -> Results:
    seconds: dict[str, float | None] = {}
    for step in plan.chain:
        # Reads the teachers of the step before, so it runs only now.
        for command in step.finetune():
            seconds[str(command.makes.parent)] = command.run_once()
    dumped = {name: _try([plan.dump(name)]) for name in plan.parts.sets}
    trained = {
        name: None if dumped[plan.parts.set_of[name]] is None else _try(plan.train(name, s) for s in plan.student_seeds)
        for name in plan.parts.students
    }
    first, default = next(iter(plan.parts.sets)), next(iter(plan.parts.students))
    # Without the first set there are no rows to score on, and without the first student nothing to compare with.
    if dumped[first] is None or trained[default] is None:
        raise DistillError(f"the set {first!r} or the student {default!r}, of which all others need something, failed")
    sets = {name: ExampleSet.open(plan.set_folder(name)) for name, seconds in dumped.items() if seconds is not None}
    teacher = plan.teacher()
    return {
        "teacher": {"folder": teacher, "seeds": _teachers(plan)} | _start(plan, teacher),
        "sets": {
            name: {"bytes": sets[name].record.num_bytes, "seconds": seconds[0]}
            for name, seconds in dumped.items()
            if seconds is not None
        },
        "seeds": list(plan.student_seeds),
        "first": default,
        "commands": [command.line for command in plan.all_commands()],
    } | _compared(plan, sets, trained, seconds.get(teacher))


def _compared(
    plan: TaskPlan,
    sets: dict[str, ExampleSet],
    trained: dict[str, list[float | None] | None],
    teacher_seconds: float | None,
) -> Results:
    """Measures all systems, and compares them with the first student."""
    first, default = next(iter(plan.parts.sets)), next(iter(plan.parts.students))
    taught, teacher = plan.parts.set_of[default], plan.teacher()
    reference = plan.run_folder(default, plan.student_seeds[0])
    cells = TaskCells(plan.task, sets[first], sets[taught], reference, plan.records)
    reads = (plan.dump(first).makes,)
    systems: dict[str, Cell] = {}
    for name, baseline in BASELINES.items():
        depends = (*reads, plan.dump(taught).makes) if baseline.from_teacher else reads
        cell = _baseline(plan, cells, name, baseline, depends)
        if cell is not None:
            systems[name] = cell
    for name, times in trained.items():
        systems[name] = _student(plan, cells, name, sets, reads, times)
    systems["teacher"] = cells.teacher(teacher, (*reads, *weights_of(teacher)))
    systems["teacher"] |= {"kind": "teacher", "training_seconds": [teacher_seconds]}
    stored = {name: _stored_name(name, cell["kind"]) for name, cell in systems.items() if "splits" in cell}
    for name in stored.keys() - {default}:
        systems[name]["differences"] = cells.differences(stored[name], stored[default])
    # The teacher agrees with itself, and the majority is the same on all rows.
    slices = cells.slices({name: of for name, of in stored.items() if name not in ("majority", "teacher")})
    return {"systems": systems, "slices": slices}


def _stored_name(name: str, kind: str) -> str:
    """The name under which a system's measurements are stored."""
    return name if kind == "teacher" else f"{kind}-{as_file(name)}"


def _try(commands: Iterable[Command]) -> list[float | None] | None:
    """The seconds that each of some commands took, or None if one of them failed."""
    try:
        return [command.run_once() for command in commands]
    except DistillError as error:
        console.error(str(error))
        return None


def _student(
    plan: TaskPlan,
    cells: TaskCells,
    name: str,
    sets: dict[str, ExampleSet],
    reads: tuple[Path, ...],
    times: list[float | None] | None,
) -> Cell:
    """A kind of student, with the seconds that the training of each seed took, if none failed."""
    if times is None:
        return {"kind": "student", "failed": "its training failed"}
    logit_set = sets[plan.parts.set_of[name]]
    runs = [plan.run_folder(name, seed) for seed in plan.student_seeds]
    weights = [run / "model.safetensors" for run in runs]
    cell = cells.student(_stored_name(name, "student"), runs, logit_set, (*reads, *weights))
    return cell | {"kind": "student", "training_seconds": times, "set_bytes": logit_set.record.num_bytes}


def _baseline(plan: TaskPlan, cells: TaskCells, name: str, baseline: Baseline, reads: tuple[Path, ...]) -> Cell | None:
    """A baseline's cell, or why there is none, or None if it is not for such a task."""
    encoder, vectors = plan.config.model_name_or_path, plan.config.output_dir / "model2vec"
    if baseline.only_single and (plan.task.is_pair or plan.task.type != "classification"):
        return None
    if baseline.missing:
        return {"left_out": f"{', '.join(baseline.missing)} not installed: {EXTRA}"}
    if baseline.max_characters is not None:
        count = cells.rows_for(baseline).num_characters
        if count > baseline.max_characters:
            return {"left_out": f"{count:,} characters of training rows, more than {baseline.max_characters:,}"}
    if baseline.needs_vectors:
        if encoder is None:
            return {"left_out": "made of an encoder: give --model-name-or-path"}
        vectors = distil(encoder, vectors)
        reads = (*reads, *weights_of(vectors))
    return cells.baseline(_stored_name(name, "baseline"), baseline, vectors, reads) | {"kind": "baseline"}


def _start(plan: TaskPlan, teacher: str) -> dict[str, str]:
    """What a teacher was fine-tuned from, if that is another task's, or was to be."""
    start = plan.started_from(Path(teacher))
    absent = {} if plan.absent_start is None else {"absent_start": plan.absent_start}
    return absent if start is None else {"from": str(start)}


def _teachers(plan: TaskPlan) -> dict[str, Any]:
    """The best epoch's scores of every teacher that was fine-tuned, by seed."""
    records = {command.makes.parent.name: command.makes for command in plan.finetune()}
    return {seed: read_work_record(path)["result"]["best"]["metrics"] for seed, path in records.items()}
