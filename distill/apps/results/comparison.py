"""Runs a whole comparison: what is missing is computed, the tables are written again after each task."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from distill.apps.bench.timing import processor
from distill.apps.config import ResultsConfig
from distill.apps.results.baselines import BASELINES, Baseline
from distill.apps.results.cells import Cell, TaskCells
from distill.apps.results.commands import Command, run_once
from distill.apps.results.experiment import as_file
from distill.apps.results.plan import TaskPlan, plans, weights_of
from distill.apps.results.tables import page
from pipeline import console
from pipeline.errors import DistillError
from pipeline.files import make_folder, write_text
from pipeline.sets.reader import ExampleSet
from pipeline.training.run_record import read_run_record

EXTRA = "pip install 'distill-offline[teacher,results]'"
Results = dict[str, Any]


def results(config: ResultsConfig, command: str) -> Results:
    """Makes or completes a table of results.

    Returns:
        The content of ``results.json``, of which ``RESULTS.md`` is made: ``command``, ``machine``, ``about`` the
        systems, and ``tasks`` by name. What has failed is told there as ``failed``, and tried again the next time.

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
        write_text(config.output_dir / "results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        write_text(config.output_dir / "RESULTS.md", page(found))
    return found


def planned(config: ResultsConfig) -> list[str]:
    """The commands that would be run, each once, as one types them; none that has nothing to do is left out."""
    trained = [plan for plan in plans(config) if "train" in plan.source.splits]
    return list(dict.fromkeys(command.line for plan in trained for command in plan.all_commands()))


def _task(plan: TaskPlan) -> Results:
    """All that is told of a task; what fails does not keep the others from being computed."""
    splits, whole = plan.source.splits, plan.task.splits
    told: Results = {
        "metrics": list(plan.task.metrics),
        "rows": {split: {"rows": rows.num_rows, "whole": whole[split]} for split, rows in splits.items()},
        "absent": [split for split in whole if split not in splits],
        "systems": {},
    }
    if "train" not in splits:
        return told | {"left_out": "no training rows are here, so that nothing can be trained or asked"}
    try:
        return told | _measured(plan)
    except DistillError as error:
        console.error(str(error))
        return told | {"failed": str(error)}


def _measured(plan: TaskPlan) -> Results:
    seconds: dict[str, float | None] = {}
    for step in plan.chain:
        for command in step.finetune():  # which reads what the step before has made
            seconds[str(command.makes.parent)] = run_once(command)["seconds"]
    asked = {name: _try([plan.dump(name)]) for name in plan.parts.sets}
    trained = {
        name: None if asked[plan.parts.set_of[name]] is None else _try(plan.train(name, s) for s in plan.student_seeds)
        for name in plan.parts.students
    }
    first, default = next(iter(plan.parts.sets)), next(iter(plan.parts.students))
    if asked[first] is None or trained[default] is None:
        raise DistillError(f"the set {first!r} or the student {default!r}, of which all others need something, failed")
    sets = {name: ExampleSet.open(plan.set_folder(name)) for name, seconds in asked.items() if seconds is not None}
    teacher, reference = plan.teacher(), plan.run_folder(default, plan.student_seeds[0])
    cells = TaskCells(plan.task, sets[first], reference, plan.records)
    reads = (plan.dump(first).makes,)
    systems: dict[str, Cell] = {}
    for name, baseline in BASELINES.items():
        cell = _baseline(plan, cells, name, baseline, reads)
        if cell is not None:
            systems[name] = cell
    for name, times in trained.items():
        if times is None:
            systems[name] = {"kind": "student", "failed": "its training failed"}
            continue
        told = {"training_seconds": times, "set_bytes": sets[plan.parts.set_of[name]].record.num_bytes}
        systems[name] = _student(plan, cells, name, reads) | {"kind": "student"} | told
    systems["teacher"] = cells.teacher(teacher, (*reads, *weights_of(teacher)))
    systems["teacher"] |= {"kind": "teacher", "training_seconds": [seconds.get(str(teacher))]}
    return {
        "teacher": {"folder": str(teacher), "seeds": _teachers(plan)} | _start(plan, teacher),
        "sets": {
            name: {"bytes": sets[name].record.num_bytes, "seconds": seconds[0]}
            for name, seconds in asked.items()
            if seconds is not None
        },
        "seeds": list(plan.student_seeds),
        "commands": [command.line for command in plan.all_commands()],
        "systems": systems,
    }


def _try(commands: Iterable[Command]) -> list[float | None] | None:
    """The seconds that each of some commands took, or None if one of them failed."""
    try:
        return [run_once(command)["seconds"] for command in commands]
    except DistillError as error:
        console.error(str(error))
        return None


def _student(plan: TaskPlan, cells: TaskCells, name: str, reads: tuple[Path, ...]) -> Cell:
    runs = [plan.run_folder(name, seed) for seed in plan.student_seeds]
    weights = [run / "model.safetensors" for run in runs]
    return cells.student(as_file(name), runs, (*reads, *weights))


def _baseline(plan: TaskPlan, cells: TaskCells, name: str, baseline: Baseline, reads: tuple[Path, ...]) -> Cell | None:
    """A baseline's cell, or why there is none; None if it is not for such a task."""
    encoder, vectors = plan.config.model_name_or_path, plan.config.output_dir / "model2vec"
    if baseline.only_single and (plan.task.is_pair or plan.task.type != "classification"):
        return None
    if baseline.missing:
        return {"left_out": f"{', '.join(baseline.missing)} not installed: {EXTRA}"}
    if baseline.needs_vectors:
        if encoder is None:
            return {"left_out": "made of an encoder: give --model-name-or-path"}
        from distill.apps.results.static_vectors import distil

        vectors = distil(encoder, vectors)
        reads = (*reads, *weights_of(vectors))
    return cells.baseline(as_file(name), baseline, vectors, reads) | {"kind": "baseline"}


def _start(plan: TaskPlan, teacher: Path) -> dict[str, str]:
    """What a teacher was fine-tuned from, if that is another task's, or was to be."""
    start = plan.started_from(teacher)
    absent = {} if plan.absent_start is None else {"absent_start": plan.absent_start}
    return absent if start is None else {"from": str(start)}


def _teachers(plan: TaskPlan) -> dict[str, Any]:
    """The best epoch's scores of every teacher that was fine-tuned, by seed."""
    records = {command.makes.parent.name: command.makes for command in plan.finetune()}
    return {seed: read_run_record(path)["result"]["best"]["metrics"] for seed, path in records.items()}
