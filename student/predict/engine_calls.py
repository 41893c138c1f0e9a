"""Calls of the engine's Python package, with this project's errors.

Shapes: N inputs, F features, C logits, W words of all sentences.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.arrays import Floats
from pipeline.errors import IntegrityError, MissingDependencyError
from pipeline.untrusted import require_text


def has_engine() -> bool:
    """Whether the engine was built."""
    try:
        from student.engine.python import distill_student  # noqa: F401
    except OSError:
        return False
    return True


def opened(name: str | Path, make: Callable[[Any], Any]) -> Any:
    """Returns what is made of the engine's Python package.

    Args:
        name: of the student in messages.
        make: from the package to one of its predictors.

    Raises:
        MissingDependencyError: if the engine was not built.
        IntegrityError: if it refuses the student.
    """
    if not has_engine():
        raise MissingDependencyError(
            f"{name}: the engine is not built. Install a C++17 compiler, and then distill-offline again"
        )
    from student.engine.python import distill_student

    try:
        return make(distill_student)
    except distill_student.DistillError as error:
        raise IntegrityError(str(error)) from error


def logits_by(engine: Any, first: Sequence[str], second: Sequence[str] | None) -> Any:
    """Returns what an engine's predictor, of one task or of several, answers to texts.

    Args:
        engine: the predictor.
        first: the (first) texts.
        second: the second ones, for pairs.

    Raises:
        DataError: naming the first sentence that is not text.
    """
    texts = (first,) if second is None else (first, second)
    return _answered(lambda: engine.logits(first, second), lambda: texts)


def word_logits_by(engine: Any, sentences: Sequence[Sequence[str]]) -> Floats:
    """Returns the logits of the words of all sentences [W, C]. See `logits_by`."""
    logits_WC: Floats = _answered(lambda: engine.logits(sentences), lambda: ([" ".join(words) for words in sentences],))
    return logits_WC


def encoded_by(engine: Any, texts: Sequence[str]) -> Floats:
    """Returns the vectors of texts. See `logits_by`."""
    vectors_NF: Floats = _answered(lambda: engine.encode(texts), lambda: (texts,))
    return vectors_NF


def _answered(ask: Callable[[], Any], texts: Callable[[], tuple[Sequence[Any], ...]]) -> Any:
    """Returns an answer of the engine. The error of a sentence that is not text has the sentence's number."""
    from student.engine.python.distill_student import DistillError

    try:
        return ask()
    except DistillError as error:
        require_text(texts(), 0)
        raise IntegrityError(str(error)) from error
