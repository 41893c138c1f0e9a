"""Untrained teachers: an encoder with a random head."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier


def save_new_teacher(
    manifest: Path, encoder: Path, folder: Path, seed: int = 1, change: Callable[[Any], Any] = lambda head: None
) -> Path:
    """Saves a classifier for the task of a manifest, with what ``change`` does to its head; returns the folder."""
    task = load_task(manifest=manifest)
    torch.manual_seed(seed)
    teacher = new_classifier(task, make_target(task), str(encoder), None, 32)
    with torch.no_grad():
        change(teacher.model.classifier)
    save_teacher(teacher.model, teacher.name, teacher.revision, folder)
    return folder


def prefer_the_first(head: torch.nn.Linear) -> None:
    """Makes the first label likelier than the others."""
    head.bias[0] += 5
