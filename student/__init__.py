"""Stage two: small students trained from stored logits, with no teacher in memory."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from student.model.model import Student
    from student.predict import Predictor

__all__ = ["Predictor", "Student"]


def __getattr__(name: str) -> Any:
    """Imports what this package offers when it is first asked for: torch takes seconds, and ``--help`` needs none."""
    if name == "Predictor":
        from student.predict import Predictor

        return Predictor
    if name == "Student":
        from student.model.model import Student

        return Student
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
