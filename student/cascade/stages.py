"""The stages of a cascade: a student here, a teacher in a process of its own, or a server.

A stage is named by its source: the folder or file of a student, the folder of a teacher, or a URL. Servers are those of
`distill serve` and text-embeddings-inference (``/predict``), and OpenAI-compatible ones (``.../chat/completions?model=
NAME``) that answer with one label. Probabilities are matched to labels by name, never by position.

Shapes: N inputs, C labels.
"""

import json
import os
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit
from weakref import finalize

import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DistillError, short
from pipeline.tasks.target import probabilities
from pipeline.untrusted import parse_json
from student.predict.predictor import Predictor, StudentInfo

Texts = Sequence[str]
START_SECONDS = 300.0
AT_ONCE = 32  # inputs of a request: text-embeddings-inference takes no more by default
MOST_ANSWER_BYTES = 2**26
API_KEY = "OPENAI_API_KEY"
OPENAI = "/chat/completions"


class StageError(DistillError):
    """A stage did not answer in time, or not with probabilities of the task's labels."""


class Stage(ABC):
    """Answers inputs. `open_stages` makes it.

    Args:
        source: names it.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    @abstractmethod
    def probabilities(self, first: Texts, second: Texts | None) -> Floats:
        """The probabilities of inputs, float32 [N, C].

        Raises:
            StageError: if there are none.
        """

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of the files that decide a student's answers. Empty for others, whose files are not known."""
        return {}

    def close(self) -> None:  # noqa: B027  (most stages start nothing)
        """Ends what it has started."""


class StudentStage(Stage):
    """A student in this process."""

    def __init__(self, source: str, predictor: Predictor) -> None:
        super().__init__(source)
        self.predictor = predictor

    def probabilities(self, first: Texts, second: Texts | None) -> Floats:
        """See `Stage`."""
        return probabilities(self.predictor.info.target, self.predictor.calibrated_logits(first, second))

    def hashes(self) -> dict[str, str]:
        """See `Stage`."""
        return self.predictor.hashes()


class RemoteStage(Stage):
    """A stage in another process, here or elsewhere.

    Args:
        source: names it.
        names: of the task's labels.
        timeout: seconds that a request may take.
    """

    def __init__(self, source: str, names: tuple[str, ...], timeout: float) -> None:
        super().__init__(source)
        self.names, self.timeout = names, timeout


class TeacherStage(RemoteStage):
    """A teacher in a process of its own, which is started for the first input and again after a failure.

    Teacher and student never share a process: this one needs neither transformers nor the teacher's memory.

    Args:
        source: its folder.
        names: of the task's labels.
        timeout: seconds that an answer may take, once the teacher is loaded.
        max_seq_length: tokens of an input that it reads.
    """

    def __init__(self, source: str, names: tuple[str, ...], timeout: float, max_seq_length: int) -> None:
        super().__init__(source, names, timeout)
        self._max_seq_length = max_seq_length

    _process: "subprocess.Popen[str] | None" = None

    def probabilities(self, first: Texts, second: Texts | None) -> Floats:
        """See `Stage`."""
        # Texts of similar length need little padding. A request has few of them, because it has to end in time.
        order_N = np.argsort([len(text) for text in first], kind="stable")
        parts = [np.empty((0, len(self.names)), dtype=np.float32)]
        for start in range(0, len(first), AT_ONCE):
            rows = order_N[start : start + AT_ONCE].tolist()
            parts.append(self._ask([first[k] for k in rows], None if second is None else [second[k] for k in rows]))
        p_NC = np.empty((len(first), len(self.names)), dtype=np.float32)
        p_NC[order_N] = np.concatenate(parts)
        return p_NC

    def _ask(self, first: list[str], second: list[str] | None) -> Floats:
        try:
            answers = self._exchange({"first": first, "second": second})
        except (OSError, ValueError, Empty) as error:
            self.close()
            raise StageError(
                f"{self.source}: the teacher's process gave no answer ({str(error) or 'timeout'})"
            ) from error
        if "error" in answers:
            raise StageError(f"{self.source}: {answers['error']}")
        return in_order(self.source, self.names, answers["labels"], answers["probabilities"])

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._line(self.timeout)

    def _line(self, timeout: float) -> dict[str, Any]:
        line = self._lines.get(timeout=timeout)
        if not line:
            raise ValueError("it ended")
        values = parse_json(line.encode())
        if not isinstance(values, dict):
            raise ValueError(f"it printed {short(values)}")
        return values

    def _start(self) -> None:
        self.close()
        command = [sys.executable, "-m", "teacher.imported.process", self.source, str(self._max_seq_length)]
        # The teacher's own messages go to standard error, as this process's do.
        process = subprocess.Popen(  # noqa: S603  (no shell reads it)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._process, self._lines = process, Queue[str]()
        # Only a thread can wait for a line with a timeout on every system.
        pump = Thread(target=_pump, args=(process, self._lines), daemon=True)
        pump.start()
        # A stage that nobody closes ends its process when nobody uses it any more.
        self._end = finalize(self, _ended, process, pump)
        # Libraries and weights take longer to load than an answer may take.
        first = self._line(START_SECONDS)
        if "error" in first:
            raise ValueError(first["error"])

    def close(self) -> None:
        """See `Stage`."""
        if self._process is not None:
            self._end()
            self._process = None


def _ended(process: "subprocess.Popen[str]", pump: Thread) -> None:
    process.kill()
    process.wait()
    # The pipe may be closed only when nobody reads from it.
    pump.join()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not sent goes nowhere
                pipe.close()


def _pump(process: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")  # it has ended


class ServerStage(RemoteStage):
    """A server with the API of text-embeddings-inference, such as `distill serve`."""

    def probabilities(self, first: Texts, second: Texts | None) -> Floats:
        """See `Stage`."""
        url = self.source.rstrip("/")
        url = url if url.endswith("/predict") else f"{url}/predict"
        rows = [list(row) for row in zip(*(part for part in (first, second) if part is not None), strict=True)]
        parts = [np.empty((0, len(self.names)), dtype=np.float32)]
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            answers = post(url, {"inputs": some, "truncate": True}, self.timeout)
            try:
                labels = [[one["label"] for one in row] for row in answers]
                scores = [[one["score"] for one in row] for row in answers]
            except (TypeError, KeyError) as error:
                raise StageError(f"{url}: answered {short(answers)}, which is no list of labels and scores") from error
            # Each answer is in an order of its own, that of its scores.
            matched = [in_order(url, self.names, names, [own]) for names, own in zip(labels, scores, strict=True)]
            if len(matched) != len(some):
                raise StageError(f"{url}: {len(matched)} answers to {len(some)} inputs")
            parts += matched
        return np.concatenate(parts)


class ChatStage(RemoteStage):
    """An OpenAI-compatible server, whose answer is the name of one label."""

    def probabilities(self, first: Texts, second: Texts | None) -> Floats:
        """See `Stage`. 1 for the label that it names."""
        parts = urlsplit(self.source)
        model = parse_qs(parts.query).get("model", ["default"])[0]
        url = urlunsplit(parts._replace(query=""))
        key = os.environ.get(API_KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        chosen = []
        pairs = zip(first, [None] * len(first) if second is None else second, strict=True)
        for pair in pairs:
            body = {"model": model, "temperature": 0, "messages": self._messages(*pair)}
            answer = post(url, body, self.timeout, headers)
            try:
                said = answer["choices"][0]["message"]["content"].strip().strip(".\"'`").lower()
            except (TypeError, KeyError, IndexError, AttributeError) as error:
                raise StageError(f"{url}: answered {short(answer)}, which is no chat completion") from error
            found = [k for k, name in enumerate(self.names) if name.lower() == said]
            if len(found) != 1:
                raise StageError(f"{url}: answered {short(said)}, which is none of {', '.join(self.names)}")
            chosen += found
        return np.eye(len(self.names), dtype=np.float32)[np.array(chosen, dtype=np.int64)]

    def _messages(self, first: str, second: str | None) -> list[dict[str, str]]:
        rule = f"Classify the text. Answer with one of these labels and nothing else: {', '.join(self.names)}"
        text = first if not second else f"{first}\n\n{second}"
        return [{"role": "system", "content": rule}, {"role": "user", "content": text}]


def open_stages(sources: Sequence[str], timeout: float) -> list[Stage]:
    """Opens the stages of a cascade, the first of which is a student.

    Args:
        sources: of each the folder or file of a student, the folder of a teacher, or a URL.
        timeout: seconds that a request may take.

    Raises:
        ConfigError: if the first one is no student with one label per row, or another one has other inputs or labels.
    """
    first, *others = sources
    if is_url(first) or is_teacher(first):
        raise ConfigError(f"--stage {first}: the first stage is a student, the folder of its run or its file")
    predictor = Predictor(first)
    target = predictor.info.target
    if not target.has_classes:
        raise ConfigError(
            f"--stage {first}: cascades give one label per row, but this task {target.type.why_no_classes}"
        )
    return [StudentStage(first, predictor), *(open_stage(one, predictor.info, timeout) for one in others)]


def open_stage(source: str, info: StudentInfo, timeout: float) -> Stage:
    """Opens a stage after the first one.

    Args:
        source: folder or file of a student, folder of a teacher, or URL.
        info: of the first stage, whose inputs and labels it has to share.
        timeout: seconds that a request may take.

    Raises:
        ConfigError: if it has other inputs or labels.
    """
    names = info.target.names
    if is_url(source):
        kind = ChatStage if urlsplit(source).path.endswith(OPENAI) else ServerStage
        return kind(source, names, timeout)
    if is_teacher(source):
        return TeacherStage(source, names, timeout, info.max_seq_length)
    predictor = Predictor(source)
    theirs, ours = ((one.target.names, one.is_pair) for one in (predictor.info, info))
    if theirs != ours:
        raise ConfigError(f"--stage {source}: {_inputs_of(*theirs)}, but the first stage {_inputs_of(*ours)}")
    return StudentStage(source, predictor)


def _inputs_of(names: Sequence[str], is_pair: bool) -> str:
    return f"answers {'pairs' if is_pair else 'texts'} with {', '.join(names)}"


def is_url(source: str) -> bool:
    """Whether a source is a server."""
    return urlsplit(source).scheme in ("http", "https")


def is_teacher(source: str) -> bool:
    """Whether a source is the folder of a fine-tuned transformers model that is no student."""
    try:
        values = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "model_type" in values and "distill" not in values


def post(url: str, body: dict[str, Any], timeout: float, headers: dict[str, str] | None = None) -> Any:
    """The JSON that a server answers.

    Raises:
        StageError: if it does not, in time.
    """
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310  (`is_url` let http and https through)
            return parse_json(answer.read(MOST_ANSWER_BYTES))
    except (OSError, ValueError) as error:
        raise StageError(f"{url}: {error}") from error


def in_order(source: str, names: Sequence[str], labels: Any, scores: Any) -> Floats:
    """Probabilities in the order of the task's labels, float32 [N, C].

    Args:
        source: for messages.
        names: of the task's labels.
        labels: as the stage orders and calls them.
        scores: its probabilities in that order, a list for each input.

    Raises:
        StageError: if the labels are others, or the numbers no probabilities.
    """
    try:
        place = [list(labels).index(name) for name in names]
        p_NC = np.asarray(scores, dtype=np.float32).reshape(-1, len(labels))[:, place]
    except (TypeError, ValueError) as error:
        raise StageError(f"{source}: its labels are {short(labels)}, not {', '.join(names)}") from error
    if len(labels) != len(names) or not np.isfinite(p_NC).all() or (p_NC < 0).any() or (p_NC > 1).any():
        raise StageError(f"{source}: its answers are no probabilities of {', '.join(names)}")
    return p_NC
