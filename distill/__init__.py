"""The public API: ``import distill`` and use what ``__all__`` lists. Importing it is cheap; torch comes when needed."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distill.students import evaluate_student, train_student
    from distill.teachers import dump_teacher, finetune_teacher
    from pipeline.sets.reader import LogitSet, open_set
    from student.model.model import Student
    from student.predict import Predictor
    from student.words.predict import WordPredictor

__all__ = [
    "LogitSet",
    "Predictor",
    "Student",
    "WordPredictor",
    "dump_teacher",
    "evaluate_student",
    "finetune_teacher",
    "open_set",
    "train_student",
]
_MODULES = {
    "LogitSet": "pipeline.sets.reader",
    "Predictor": "student.predict",
    "Student": "student.model.model",
    "WordPredictor": "student.words.predict",
    "dump_teacher": "distill.teachers",
    "evaluate_student": "distill.students",
    "finetune_teacher": "distill.teachers",
    "open_set": "pipeline.sets.reader",
    "train_student": "distill.students",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use: torch takes seconds, and ``--help`` needs none."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
