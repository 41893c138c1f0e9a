"""A cascade: each stage answers what it is sure of and hands the rest to the next one.

Shapes: N inputs, C labels, F features.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats, Floats64, Ints
from pipeline.errors import ConfigError, FingerprintMismatchError
from pipeline.files import sha256
from pipeline.record_file import teacher_in
from pipeline.sources.collected import Collector
from pipeline.tasks.target import log_of, margins, probabilities
from pipeline.tasks.temperature import calibrated
from pipeline.tasks.text_drift import TEXT_SIGNALS
from student.cascade.cascade_file import CASCADE_FILE, is_url, read_cascade, stage_names
from student.cascade.server import Server, ServerError
from student.predict.backend import Backend
from student.predict.student_info import StudentInfo
from student.predict.text_answers import Prediction, TextAnswers
from student.texts import taken

PAUSE = 30.0  # seconds in which a failed server gets no request
MOST_REASONS = 3  # in a warning


class CascadeAnswers(TextAnswers):
    """The answers of a cascade: of each also the name of the stage that gave it."""

    backend: "Cascade"
    names: ClassVar[Set[str]] = TextAnswers.names | {"stage"}

    def predictions(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> list[Prediction]:
        p_NC, stage_N = self.backend.answer(*self.texts(sentences1, sentences2))
        names, stages = self.info.target.names, [stage.name for stage in self.backend.stages]
        return [
            {"label": names[k], "probabilities": dict(zip(names, row, strict=True)), "stage": stages[stage]}
            for k, row, stage in zip(p_NC.argmax(axis=1).tolist(), p_NC.tolist(), stage_N.tolist(), strict=True)
        ]

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> dict[str, pa.Array]:
        p_NC, stage_N = self.backend.answer(*self.texts(sentences1, sentences2))
        names = self.info.target.names
        return {
            "label": pa.array(names).take(pa.array(p_NC.argmax(axis=1))),
            "probabilities": pa.StructArray.from_arrays(list(map(pa.array, p_NC.T)), names=names),
            "margin": pa.array(margins(p_NC)),
            "stage": pa.array([stage.name for stage in self.backend.stages]).take(pa.array(stage_N)),
        }

    def signals(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> dict[str, Floats64]:
        """Returns those of texts alone, because answers come from several stages."""
        return self.backend.text_signals(*self.texts(sentences1, sentences2))


class Cascade:
    """The stages of a cascade. See `Backend`. Vectors and token counts are those of the first student.

    An input that the server does not answer keeps the less confident answer of the stage before.

    Args:
        folder: of the cascade.
        open_student: opens the folder or file of a student.

    Attributes:
        record: the content of ``cascade.json``.
        stages: opened.
        first: the student of the first stage.
        counts: how many inputs each stage has answered since it was opened, and how many it should
            have answered but did not, by ``(number, "answers")`` and ``(number, "failures")``.

    Raises:
        IntegrityError: if the folder holds no cascade.
        FingerprintMismatchError: if a student was changed since the thresholds were chosen.
    """

    answers = CascadeAnswers
    is_quick = False

    def __init__(self, folder: Path, open_student: Callable[[Path], Backend]) -> None:
        self.folder, self._open_student = folder, open_student
        self.record = read_cascade(folder)
        self.stages = open_stages([stage.source for stage in self.record.stages], self.record.timeout, open_student)
        for stage, known in zip(self.stages, self.record.stages, strict=True):
            # Thresholds are margins of exactly these weights, and prove nothing for others.
            if stage.hashes() != known.hashes:
                raise FingerprintMismatchError(
                    f"{folder}: the stage {stage.source} was changed since. Repeat `distill cascade`."
                )
        first = self.stages[0]
        assert isinstance(first, StudentStage), "which `open_stages` has made sure of"
        self.first = first.student
        profile = self.first.info.profile
        # Answers come from several stages, and only the first one's were measured.
        of_texts = None if profile is None else profile.only(TEXT_SIGNALS)
        self.info: StudentInfo = self.first.info.model_copy(update={"calibration": None, "profile": of_texts})
        self.counts: Counter[tuple[int, str]] = Counter()
        self._paused_until = 0.0  # of the server
        self._collector: Collector | None = None
        self._collecting = Lock()

    @property
    def student(self) -> Any:
        """Raises ConfigError, so that a command that needs one student fails with a remedy."""
        raise ConfigError(f"{self.folder}: is a cascade, and this needs one student; give the folder of a stage")

    reader = student

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from its folder."""
        return type(self), (self.folder, self._open_student)

    def logits(self, first: Sequence[str], second: Sequence[str] | None) -> Floats:
        """The logarithms of the probabilities of whichever stage answers, float32 [N, C]."""
        p_NC, _ = self.answer(first, second)
        return log_of(p_NC)

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        raise NotImplementedError("`open_stages` refuses students that label words")

    def answer(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[Floats, Ints]:
        """The probabilities of inputs, float32 [N, C], and the number of the stage that gave them, int64 [N]."""
        p_NC, stage_N, open_N = self.of_students(first, second)
        if len(open_N):
            own_NC = self.of_server(*taken(first, second, open_N.tolist()))
            # An input without an answer keeps the less confident one of the student before, and others get theirs.
            has_answer_N = ~np.isnan(own_NC[:, 0])
            answered_N = open_N[has_answer_N]
            p_NC[answered_N], stage_N[answered_N] = own_NC[has_answer_N], len(self.stages) - 1
            self.counts[len(self.stages) - 1, "failures"] += len(open_N) - len(answered_N)
        self.keep(first, second, p_NC, stage_N)
        for number, count in zip(*np.unique(stage_N, return_counts=True), strict=True):
            self.counts[int(number), "answers"] += int(count)
        return p_NC, stage_N

    def of_students(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[Floats, Ints, Ints]:
        """The students' probabilities, float32 [N, C], the stage of each, int64 [N], and the rows for the server."""
        p_NC = np.zeros((len(first), self.info.target.num_logits), dtype=np.float32)
        stage_N, open_N = np.zeros(len(first), dtype=np.int64), np.arange(len(first))
        for number, (stage, record) in enumerate(zip(self.stages, self.record.stages, strict=True)):
            if not len(open_N) or isinstance(stage, Server):
                break
            own_NC, _ = stage.probabilities(*taken(first, second, open_N.tolist()))
            p_NC[open_N], stage_N[open_N] = own_NC, number
            open_N = open_N[:0] if record.threshold is None else open_N[margins(own_NC) <= record.threshold]
        return p_NC, stage_N, open_N

    def of_server(self, first: Sequence[str], second: Sequence[str] | None) -> Floats:
        """The server's probabilities, float32 [N, C]. Rows without an answer are NaN."""
        server = self.stages[-1]
        p_NC = np.full((len(first), self.info.target.num_logits), np.nan, dtype=np.float32)
        # Inputs that arrive meanwhile must not wait for a timeout each.
        if time.monotonic() < self._paused_until:
            return p_NC
        try:
            p_NC, reasons = server.probabilities(first, second)
        except ServerError as error:
            self._paused_until = time.monotonic() + PAUSE
            reasons = [f"{error}. It gets no request for {PAUSE:.0f} seconds"]
        if reasons:
            missing = int(np.isnan(p_NC[:, 0]).sum())
            console.warn(
                f"cascade: {missing:,} of {len(first):,} inputs got no answer from the server and keep that of the "
                f"stage before: {'; '.join(reasons[:MOST_REASONS])}"
            )
        return p_NC

    def keep(self, first: Sequence[str], second: Sequence[str] | None, p_NC: Floats, stage_N: Ints) -> None:
        """Collects those of the answers that a later stage gave, if `collect` was called."""
        if self._collector is not None:
            with self._collecting:  # a server that serves a cascade has a thread for each kind of stage
                names = [stage.name for stage in self.stages]
                self._collector.add((first, second), p_NC, stage_N, self.info.target.names, names)

    def collect(self, folder: Path, has_text: bool = True) -> None:
        """Appends the inputs that are handed on to files in a folder from now on, see `pipeline.sources.collected`.

        Args:
            folder: of the files.
            has_text: whether their texts are written, or only the hashes of them.
        """
        self._collector = Collector(folder, has_text)

    def close(self) -> None:
        """Closes the file of collected inputs."""
        if self._collector is not None:
            self._collector.close()

    def handed_on(self) -> dict[str, int]:
        """Returns how many inputs were handed on to the last stage since it was opened, and how many it answered."""
        answered, missing = (self.counts[len(self.stages) - 1, name] for name in ("answers", "failures"))
        return {"inputs": answered + missing, "answered": answered, "not_answered": missing}

    def encode(self, texts: Sequence[str]) -> Floats:
        return self.first.encode(texts)

    def num_tokens(self, first: Sequence[str], second: Sequence[str] | None) -> Ints:
        return self.first.num_tokens(first, second)

    def text_signals(self, first: Sequence[str], second: Sequence[str] | None) -> dict[str, Floats64]:
        return self.first.text_signals(first, second)

    def text_columns(self) -> list[tuple[str, ...]] | None:
        return self.first.text_columns()

    def certified_threshold(self) -> float:
        """Raises ConfigError: each stage has a threshold of its own."""
        raise ConfigError(
            f"--abstain: {self.folder} is a cascade, which hands on what a stage is not sure of and never abstains"
        )

    def bias(self, costs: Mapping[str, float]) -> None:
        """Returns no bias. Raises ConfigError for costs."""
        if costs:
            raise ConfigError(f"--cost: {self.folder} is a cascade, which takes no costs of labels")

    def hashes(self) -> dict[str, str]:
        own = {CASCADE_FILE: sha256(self.folder / CASCADE_FILE)}
        for number, stage in enumerate(self.record.stages):
            own |= {f"{number}/{name}": value for name, value in stage.hashes.items()}
        return own

    def set_threads(self, count: int) -> None:
        for stage in self.stages:
            if isinstance(stage, StudentStage):
                stage.student.set_threads(count)


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
    for source in (one for one in sources if not is_url(one) and teacher_in(Path(one))):
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
