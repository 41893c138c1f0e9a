"""Stage two: small students trained from stored logits, with no teacher in memory."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from student.functions import evaluate_student, train_student
    from student.model.model import Student
    from student.predict import Predictor
    from student.words.predict import WordPredictor

__all__ = ["Predictor", "Student", "WordPredictor", "evaluate_student", "train_student"]


def __getattr__(name: str) -> Any:
    """Imports what this package offers when it is first asked for: torch takes seconds, and ``--help`` needs none."""
    if name == "Predictor":
        from student.predict import Predictor

        return Predictor
    if name == "WordPredictor":
        from student.words.predict import WordPredictor

        return WordPredictor
    if name == "Student":
        from student.model.model import Student

        return Student
    if name in ("evaluate_student", "train_student"):
        from student import functions

        return getattr(functions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
