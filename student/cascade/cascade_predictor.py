"""A cascade as a predictor: each stage answers what it is sure of and hands the rest to the next one.

Shapes: N inputs, C labels, F features.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats, Floats64, Ints
from pipeline.errors import ConfigError, FingerprintMismatchError
from pipeline.files import sha256
from pipeline.sources.collected import Collector
from pipeline.tasks.target import log_of, margins
from pipeline.tasks.text_drift import TEXT_SIGNALS
from student.cascade.cascade_file import CASCADE_FILE, CascadeRecord, read_cascade
from student.cascade.server import ServerError
from student.cascade.stages import ServerStage, StudentStage, open_stages
from student.predict.predictor import Prediction, Predictor, StudentInfo

PAUSE = 30.0  # seconds in which a failed server gets no request
MOST_REASONS = 3  # in a warning


class CascadePredictor(Predictor):
    """A cascade. See `Predictor` for arguments and errors.

    An input that the server does not answer keeps the less confident answer of the stage before.

    Attributes:
        record: the content of ``cascade.json``.
        stages: opened.
        first: the student of the first stage.
        counts: how many inputs each stage has answered since it was opened, and how many it should
            have answered but did not, by ``(number, "answers")`` and ``(number, "failures")``.
    """

    answer_names: ClassVar[Set[str]] = Predictor.answer_names | {"stage"}

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        if abstain:
            raise ConfigError("--abstain: a cascade hands on what a stage is not sure of, and never abstains")
        if costs or task is not None:
            raise ConfigError(f"{run}: is a cascade, which takes neither costs of labels nor a task")
        self.folder = Path(run)
        self.record: CascadeRecord = read_cascade(self.folder)
        self.stages = open_stages([stage.source for stage in self.record.stages], self.record.timeout)
        for stage, known in zip(self.stages, self.record.stages, strict=True):
            # Thresholds are margins of exactly these weights, and prove nothing for others.
            if stage.hashes() != known.hashes:
                raise FingerprintMismatchError(
                    f"{run}: the stage {stage.source} was changed since. Repeat `distill cascade`."
                )
        first = self.stages[0]
        assert isinstance(first, StudentStage), "which `open_stages` has made sure of"
        self.first = first.predictor
        profile = self.first.info.profile
        # Answers come from several stages, and only the first one's were measured.
        of_texts = None if profile is None else profile.only(TEXT_SIGNALS)
        self.info: StudentInfo = self.first.info.model_copy(update={"calibration": None, "profile": of_texts})
        self.threshold, self.bias_C = None, None
        self.counts: Counter[tuple[int, str]] = Counter()
        self._paused_until = 0.0  # of the server
        self._collector: Collector | None = None
        self._collecting = Lock()

    def __getattr__(self, name: str) -> Any:
        """Raises ConfigError for what only one student gives, so that a command that needs it fails with a remedy."""
        if name in {"student", "reader"}:
            raise ConfigError(f"{self.folder}: is a cascade, and this needs one student; give the folder of a stage")
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from its folder."""
        return type(self), (self.folder,)

    def __call__(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """See `Predictor`. Each answer also has its ``stage``, the stage's name."""
        p_NC, stage_N = self.answers(*self._texts(sentences1, sentences2))
        names = self.info.target.names
        return [
            {"label": names[k], "probabilities": dict(zip(names, row, strict=True)), "stage": self.stages[stage].name}
            for k, row, stage in zip(p_NC.argmax(axis=1).tolist(), p_NC.tolist(), stage_N.tolist(), strict=True)
        ]

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """The logarithms of the probabilities of whichever stage answers, float32 [N, C]."""
        p_NC, _ = self.answers(*self._texts(sentences1, sentences2))
        return log_of(p_NC)

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> dict[str, pa.Array]:
        """See `Predictor`. Adds the column ``stage``."""
        p_NC, stage_N = self.answers(*self._texts(sentences1, sentences2))
        names, sources = self.info.target.names, [stage.name for stage in self.stages]
        return {
            "label": pa.array(names).take(pa.array(p_NC.argmax(axis=1))),
            "probabilities": pa.StructArray.from_arrays(list(map(pa.array, p_NC.T)), names=names),
            "margin": pa.array(margins(p_NC)),
            "stage": pa.array(sources).take(pa.array(stage_N)),
        }

    def answers(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[Floats, Ints]:
        """The probabilities of inputs, float32 [N, C], and the number of the stage that gave them, int64 [N]."""
        p_NC, stage_N, open_N = self.of_students(first, second)
        if len(open_N):
            texts = [None if part is None else [part[k] for k in open_N.tolist()] for part in (first, second)]
            own_NC = self.of_server(texts[0] or [], texts[1])
            # An input without an answer keeps the less confident one of the student before, and others get theirs.
            answered_N = open_N[~np.isnan(own_NC[:, 0])]
            p_NC[answered_N], stage_N[answered_N] = own_NC[~np.isnan(own_NC[:, 0])], len(self.stages) - 1
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
            if not len(open_N) or isinstance(stage, ServerStage):
                break
            texts = [None if part is None else [part[k] for k in open_N.tolist()] for part in (first, second)]
            own_NC, _ = stage.probabilities(texts[0] or [], texts[1])
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

    def handed_on(self) -> dict[str, int]:
        """Returns how many inputs were handed on to the last stage since it was opened, and how many it answered."""
        answered, missing = (self.counts[len(self.stages) - 1, name] for name in ("answers", "failures"))
        return {"inputs": answered + missing, "answered": answered, "not_answered": missing}

    def encode(self, sentences: Iterable[str]) -> Floats:
        """The vectors of the first student among the stages, see `Predictor`."""
        return self.first.encode(sentences)

    def num_tokens(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Ints:
        """See `Predictor`. Returns those of the first student among the stages."""
        return self.first.num_tokens(sentences1, sentences2)

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`. Returns those of the first student among the stages."""
        return self.first.text_signals(sentences1, sentences2)

    def signals(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`. Only texts are compared."""
        return self.text_signals(*self._texts(sentences1, sentences2))

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """See `Predictor`."""
        return self.first.text_columns()

    def certified_threshold(self) -> float:
        """Raises ConfigError: each stage has a threshold of its own."""
        raise ConfigError(f"{self.folder}: is a cascade, which never abstains")

    def hashes(self) -> dict[str, str]:
        """See `Predictor`."""
        own = {CASCADE_FILE: sha256(self.folder / CASCADE_FILE)}
        for number, stage in enumerate(self.record.stages):
            own |= {f"{number}/{name}": value for name, value in stage.hashes.items()}
        return own

    def set_threads(self, count: int) -> None:
        """See `Predictor`."""
        for stage in self.stages:
            if isinstance(stage, StudentStage):
                stage.predictor.set_threads(count)

    def collect(self, folder: Path, has_text: bool = True) -> None:
        """See `Predictor`."""
        self._collector = Collector(folder, has_text)

    def close(self) -> None:
        """Closes the file of collected inputs."""
        if self._collector is not None:
            self._collector.close()
