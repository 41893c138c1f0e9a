"""The stages of a cascade: students in this process, and at most one server behind them.

A stage is named by its source: the folder or file of a student, or a URL.

Shapes: N inputs, C labels.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.arrays import Floats
from pipeline.errors import ConfigError
from pipeline.tasks.target import probabilities
from pipeline.tasks.temperature import calibrated
from student.cascade.cascade_file import is_url, stage_names
from student.cascade.server import Server
from student.predict.backend import Backend
from student.predict.student_info import StudentInfo


class StudentStage(NamedTuple):
    """A student in this process.

    Attributes:
        source: folder or file of the student.
        name: names it in predictions.
        student: opened.
    """

    source: str
    name: str
    student: Backend

    def probabilities(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[Floats, list[str]]:
        """Returns the probabilities of inputs, float32 [N, C], and no reasons: a student answers every input."""
        info = self.student.info
        return probabilities(info.target, calibrated(self.student.logits(first, second), info.calibration)), []

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of the files that decide the student's predictions."""
        return self.student.hashes()


Stage = StudentStage | Server


def open_stages(sources: Sequence[str], timeout: float, open_student: Callable[[Path], Backend]) -> list[Stage]:
    """Opens the stages of a cascade: students, and at most one server as the last one.

    Args:
        sources: of each the folder or file of a student, or a URL.
        timeout: seconds that an answer of the server may take.
        open_student: opens a folder or a file.

    Raises:
        ConfigError: if the first one is no student with one label per row, a server is not the last one, or a student
            has other inputs or labels.
    """
    if is_url(sources[0]):
        raise ConfigError("--stage: the first stage is a student, the folder of its run or its file. A server is last")
    misplaced = [number for number, source in enumerate(sources[:-1], start=1) if is_url(source)]
    if misplaced:
        raise ConfigError(f"--stage: stage {misplaced[0]} is a server. Only the last stage can be one")
    for source in filter(_is_teacher, sources):
        raise ConfigError(f"--stage {source}: is a teacher. Serve it over HTTP, and give the URL as the last stage")
    names = zip(sources, stage_names(sources), strict=True)
    first, *others = [StudentStage(one, name, open_student(Path(one))) for one, name in names if not is_url(one)]
    info = first.student.info
    if not info.target.has_classes:
        raise ConfigError(
            f"--stage {first.source}: cascades give one label per row, but this task {info.target.type.why_no_classes}"
        )
    for other in others:
        theirs, ours = _inputs_of(other.student.info), _inputs_of(info)
        if theirs != ours:
            raise ConfigError(f"--stage {other.source}: {theirs}, but the first stage {ours}")
    last = [Server(sources[-1], info.target.names, timeout)] if is_url(sources[-1]) else []
    return [first, *others, *last]


def _inputs_of(info: StudentInfo) -> str:
    return f"answers {'pairs' if info.is_pair else 'texts'} with {', '.join(info.target.names)}"


def _is_teacher(source: str) -> bool:
    """Returns whether a source is the folder of a transformers model that is no student."""
    try:
        values = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "model_type" in values and "distill" not in values
