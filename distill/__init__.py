"""The public API: every command as a function, and the classes that open sets and run students.

A function has the name of its command with underscores (``distill train-student`` is `train_student`, ``distill tasks
show`` is `tasks_show`). Two names differ: ``teacher-dump`` is `dump_teacher`, and ``import`` is `import_answers`.
Functions take the flags as keywords, raise a `DistillError` for mistakes and failures, and return a `Result`. Importing
the package is cheap: torch is imported when something needs it. Editors and type checkers read ``__init__.pyi``, which
the build of the package writes.
"""

import importlib
from typing import Any

OBJECTS = {
    "ExampleSet": "pipeline.sets.kinds.examples",
    "LogitSet": "pipeline.sets.open",
    "MaskedWordSet": "pipeline.sets.kinds.masked_words",
    "SentenceSet": "pipeline.sets.kinds.sentences",
    "TokenLabelSet": "pipeline.sets.kinds.token_labels",
    "open_set": "pipeline.sets.kinds",
    "Predictor": "student.predict.predictor",
    "MultiTaskPredictor": "student.predict.multi_task",
    "Student": "student.model.student",
    "Result": "distill.result",
    "DistillError": "pipeline.errors",
    "ConfigError": "pipeline.errors",
    "DataError": "pipeline.errors",
    "IntegrityError": "pipeline.errors",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use."""
    if name in OBJECTS:
        return getattr(importlib.import_module(OBJECTS[name]), name)
    if not name.startswith("__"):
        from distill.commands import FUNCTIONS, gone, load

        if name in FUNCTIONS:
            return load(name)
        if pointer := gone(name):
            raise AttributeError(f"distill.{pointer}")
    if name == "__all__":
        from distill.commands import FUNCTIONS

        return sorted([*OBJECTS, *FUNCTIONS])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
