"""The stages of a cascade: students in this process, and at most one server behind them.

A stage is named by its source: the folder or file of a student, or a URL.

Shapes: N inputs, C labels.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.arrays import Floats
from pipeline.errors import ConfigError
from pipeline.tasks.target import probabilities
from student.cascade.cascade_file import is_url, stage_names
from student.cascade.server import Server
from student.predict.predictor import Predictor, StudentInfo

Texts = Sequence[str]


class StudentStage:
    """A student in this process.

    Args:
        source: folder or file of the student.
        name: names it in predictions.
        predictor: the opened student.
    """

    def __init__(self, source: str, name: str, predictor: Predictor) -> None:
        self.source, self.name, self.predictor = source, name, predictor

    def probabilities(self, first: Texts, second: Texts | None) -> tuple[Floats, list[str]]:
        """Returns the probabilities of inputs, float32 [N, C], and no reasons: a student answers every input."""
        return probabilities(self.predictor.info.target, self.predictor.calibrated_logits(first, second)), []

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of the files that decide the student's predictions."""
        return self.predictor.hashes()


class ServerStage:
    """A server, see `student.cascade.server`."""

    def __init__(self, source: str, names: tuple[str, ...], timeout: float) -> None:
        self.source, self._server = source, Server(source, names, timeout)
        self.name = self._server.name
        self.probabilities = self._server.probabilities

    def hashes(self) -> dict[str, str]:
        """Returns nothing, because the files of a server are not known."""
        return {}


Stage = StudentStage | ServerStage


def open_stages(sources: Sequence[str], timeout: float) -> list[Stage]:
    """Opens the stages of a cascade: students, and at most one server as the last one.

    Args:
        sources: of each the folder or file of a student, or a URL.
        timeout: seconds that an answer of the server may take.

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
    first, *others = [StudentStage(one, name, Predictor(one)) for one, name in names if not is_url(one)]
    info = first.predictor.info
    if not info.target.has_classes:
        raise ConfigError(
            f"--stage {first.source}: cascades give one label per row, but this task {info.target.type.why_no_classes}"
        )
    for other in others:
        theirs, ours = _inputs_of(other.predictor.info), _inputs_of(info)
        if theirs != ours:
            raise ConfigError(f"--stage {other.source}: {theirs}, but the first stage {ours}")
    last = [ServerStage(sources[-1], info.target.names, timeout)] if is_url(sources[-1]) else []
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
