"""The page of a run: what it was trained from and how, how good it is, and where it differs from its teacher."""

from pathlib import Path
from typing import Any

from distill.apps.report.certainty import certificate_sections
from distill.apps.report.config import ReportConfig
from distill.apps.report.dev import dev_sections
from distill.apps.report.joint import joint_page
from distill.apps.report.page import Page, Section
from distill.apps.report.pretrained import pretrained_page
from distill.apps.report.scores import scores_section
from distill.apps.report.training import training_section
from pipeline.console import size
from pipeline.errors import DataError, FingerprintMismatchError, IntegrityError
from pipeline.query.mixture import open_sets
from pipeline.sets.reader import ExampleSet
from pipeline.training.run_record import RUN_RECORD, STUDENTS, RunRecord, read_run_record
from student.describe import describe_config
from student.model.config_file import is_pretrained, read_config
from student.model.weights import CONFIG_FILE
from student.trained_sets import trained_sets


def run_page(config: ReportConfig, folder: Path) -> Page:
    """Describes a finished run; of several tasks each with its scores.

    Its set is read again for the pictures of the dev splits; if it is gone, the page says so and does without.

    Raises:
        IntegrityError: if the run is damaged or not finished.
    """
    record = finished_record(folder / RUN_RECORD)
    name = folder.resolve().name
    if STUDENTS in record:
        return joint_page(folder, record)
    if is_pretrained(folder):
        return pretrained_page(name, record)
    student_config = read_config(folder / CONFIG_FILE)
    logit_set, missing = trained_set(config, record)
    evaluation = record["result"]["evaluation"]
    sections = (
        Section("What it is", facts=_facts(record, describe_config(student_config))),
        training_section(record["result"], evaluation),
        scores_section(evaluation),
        *certificate_sections(folder),
        *(dev_sections(folder, logit_set) if logit_set else [Section("Dev splits", missing)]),
        Section("Settings", facts=_settings(record["settings"])),
    )
    lead = f"A student of {student_config.task}, trained on {record['settings']['rows']:,} rows."
    return Page("run", name, lead, sections)


def finished_record(path: Path) -> RunRecord:
    """Reads the record of a run or a sweep.

    Raises:
        IntegrityError: if it is damaged or not finished.
    """
    record = read_run_record(path)
    if record["state"] != "finished":
        command = record["command"]
        raise IntegrityError(f"{path.parent}: not finished yet; repeat its command to finish it:\n  {command}")
    return record


def trained_set(config: ReportConfig, record: RunRecord) -> tuple[ExampleSet | None, str]:
    """The set that a run was trained on, or its mixture, if all of it is still there; else None, and why."""
    try:
        paths = trained_sets(record, config.store)
    except (DataError, FingerprintMismatchError) as error:
        return None, f"There is no more here than the record of the run: {error}."
    return open_sets(paths, record["settings"].get("mix"), config.allow_unverified), ""


def _facts(record: RunRecord, made_of: dict[str, Any]) -> dict[str, Any]:
    settings, result = record["settings"], record["result"]
    architecture: dict[str, Any] = made_of["architecture"]
    return architecture | {
        "parameters": made_of["parameters"]["total"],
        "size": size(made_of["bytes"]),
        "logit set": ", ".join(record["logit_sets"]),
        "its fingerprint": ", ".join(settings["logit_set_fingerprints"]),
        "training rows": settings["rows"],
        "query": settings["query"],
        "hash of the rows": settings["rows_sha256"],
        "command": record["command"],
        "written with": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    told = {"logit_set_fingerprints", "rows", "rows_sha256", "query"}
    return {name: value for name, value in settings.items() if value is not None and name not in told}
