"""The page of a run of several tasks: what they have in common, and the scores of each."""

from pathlib import Path

from distill.apps.report.page import Page, Section
from distill.apps.report.scores import scores_section
from distill.apps.report.training import training_section
from pipeline.training.run_record import STUDENTS, RunRecord


def joint_page(folder: Path, record: RunRecord) -> Page:
    """Describes the students that one training made, which have a page of their own each.

    Args:
        folder: of the run.
        record: its record, finished.
    """
    names, result = record[STUDENTS], record["result"]
    pages = "\n".join(f"distill report {folder / name}" for name in names)
    about = {"logit sets": ", ".join(record["logit_sets"]), "command": record["command"], "pages": pages}
    sections = (
        Section("What it is", facts=about),
        training_section(result, {}),
        scores_section(result["evaluation"]),
        Section("Settings", facts={name: value for name, value in record["settings"].items() if value is not None}),
    )
    lead = f"Students of {', '.join(names)} with one encoder, each with a folder and a page of its own."
    return Page("run of several tasks", folder.resolve().name, lead, sections)
