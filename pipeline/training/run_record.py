"""A training run's record on disk: the same settings go on, others are refused, a finished run is not repeated."""

import json
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import FingerprintMismatchError, IntegrityError, setting_changes
from pipeline.files import write_text

RUN_RECORD, SWEEP_RECORD = "run.json", "sweep.json"
RunRecord = dict[str, Any]


def kind_of_folder(folder: Path) -> Literal["run", "sweep"] | None:
    """Whether a folder is that of a run or of a sweep, by the record in it; None if it is neither."""
    if (folder / SWEEP_RECORD).is_file():
        return "sweep"
    return "run" if (folder / RUN_RECORD).is_file() else None


def start_run(
    path: Path, settings: dict[str, Any], command: str, checkpoint: Path, context: dict[str, Any] | None = None
) -> RunRecord | None:
    """Opens the record of a run, or creates it.

    Args:
        path: the JSON file.
        settings: everything that decides the result, as JSON values.
        command: the command line.
        checkpoint: where the run keeps its progress; without one an unfinished run has nothing to lose.
        context: what else the record should say, such as where things lie; it may differ from try to try.

    Returns:
        The record if the run is finished, else None.

    Raises:
        FingerprintMismatchError: if the record is of a run with other settings, naming each that differs.
    """
    fresh = {"state": "running", "command": command, "settings": settings, **(context or {})}
    there = read_run_record(path) if path.exists() else fresh
    if there["state"] == "running" and not checkpoint.exists():
        write_run_record(path, fresh)
        return None
    changes = setting_changes(there["settings"], settings)
    if changes:
        raise FingerprintMismatchError(
            f"{path.parent} holds a run with other settings:\n{changes}\n"
            "Choose another --output-dir, or remove the folder if the old run is not needed"
        )
    if there != there | (context or {}):
        there |= context or {}
        write_run_record(path, there)
    return there if there["state"] == "finished" else None


def recorded_sets(record: RunRecord) -> list[str]:
    """Where the logit sets of a run lay; runs of older releases had one."""
    return record["logit_sets"] if "logit_sets" in record else [record["logit_set"]]


def recorded_fingerprints(settings: dict[str, Any]) -> list[str]:
    """Fingerprints of the logit sets of a run; those of older releases had one."""
    one = settings.get("logit_set_fingerprint")
    return list(settings["logit_set_fingerprints"]) if one is None else [one]


def finish_run(path: Path, result: dict[str, Any]) -> RunRecord:
    """Adds the result to a run's record and marks it finished."""
    record = read_run_record(path) | {"state": "finished", "result": result}
    write_run_record(path, record)
    return record


def read_run_record(path: Path) -> RunRecord:
    """Reads a record.

    Raises:
        IntegrityError: if it is missing or damaged.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path.parent}: not a run: it has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error
    if not isinstance(record, dict) or not {"state", "settings", "command"} <= record.keys():
        raise IntegrityError(f"{path}: not the record of a run")
    return record


def write_run_record(path: Path, record: RunRecord) -> None:
    """Writes a record atomically."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
