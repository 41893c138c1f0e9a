"""The server behind a cascade's students: its probabilities of the labels, or why an input got no answer.

Servers are those of `distill serve` and text-embeddings-inference (``/predict``), and OpenAI-compatible ones
(``.../chat/completions?model=NAME``) that answer with one label. Probabilities are matched to labels by name, never by
position. An input without a valid answer does not affect the others: only a failure of the server ends all of a call.

Shapes: N inputs, C labels.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from string import Template
from threading import Thread
from typing import Any

import httpx2
import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DistillError
from pipeline.tasks.target import SUM_TOLERANCE
from pipeline.untrusted import parse_json
from student.cascade.cascade_file import address

AT_ONCE = 32  # inputs of a request: text-embeddings-inference takes no more by default
REQUESTS_AT_ONCE = 8
TRIES = 4
FIRST_WAIT_S = 0.5  # before the second try, if the server names no time. It doubles with each try
MOST_ANSWER_BYTES = 2**26
MOST_QUOTED = 2_000  # characters of what a server answers instead of labels, before secrets in it are replaced
MOST_MESSAGE = 300  # characters
LEAST_SECRET = 4  # characters
API_KEY = "OPENAI_API_KEY"
OPENAI = "/chat/completions"
TRY_AGAIN = {429, 500, 502, 503, 504}
# These answers are the same for every input: a wrong key, a wrong path, too many requests.
OF_THE_SERVER = {401, 403, 404, 405, 429}


class ServerError(DistillError):
    """The server does not answer at all: it cannot be reached, breaks off, is too slow, or refuses every input."""


class RefusedError(DistillError):
    """The server gave no valid answer to these inputs. It may answer others."""


class Server:
    """A server with probabilities of a task's labels.

    Args:
        source: its URL. ``${NAME}`` stands for the environment variable of that name, so that no file holds a secret.
        names: of the task's labels.
        timeout: seconds for an answer, with all repetitions of its request.

    Attributes:
        source: as given.
        name: scheme, host and path of the URL, without what may be secret.

    Raises:
        ConfigError: if the URL or the key cannot be used.
    """

    def __init__(self, source: str, names: tuple[str, ...], timeout: float) -> None:
        self.source, self.name = source, address(source)
        self.names, self.timeout = names, timeout
        self._too_late = f"{self.name}: no answer within {timeout:g} seconds, which --timeout sets"
        try:
            url = httpx2.URL(Template(source).substitute(os.environ))
        except KeyError as error:
            raise ConfigError(f"--stage {self.name}: the environment variable {error} is not set.") from error
        except (ValueError, httpx2.InvalidURL) as error:
            raise ConfigError(f"--stage {self.name}: is no URL. Write $$ for a dollar sign.") from error
        self._is_chat = url.path.rstrip("/").endswith(OPENAI)
        key = _key() if self._is_chat else ""
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._model = url.params.get("model", "default")
        values = [value for name, value in url.params.multi_items() if name != "model"]
        # Shorter ones would also replace words of a message.
        self._secrets = [one for one in (key, url.username, url.password, *values) if len(one) >= LEAST_SECRET]
        if self._is_chat:
            self._url = url.copy_remove_param("model")
        else:
            path = url.path.rstrip("/")
            self._url = url.copy_with(path=path if path.endswith("/predict") else f"{path}/predict")

    def hashes(self) -> dict[str, str]:
        """Returns nothing, because the files of a server are not known."""
        return {}

    def probabilities(self, first: Sequence[str], second: Sequence[str] | None) -> tuple[Floats, list[str]]:
        """Returns the probabilities of inputs, float32 [N, C], with NaN in rows without an answer, and the reasons.

        Raises:
            ServerError: if the server failed before it gave any answer.
        """
        p_NC = np.full((len(first), len(self.names)), np.nan, dtype=np.float32)
        size = 1 if self._is_chat else AT_ONCE
        parts = [range(start, min(start + size, len(first))) for start in range(0, len(first), size)]
        rows = list(zip(first, strict=True)) if second is None else list(zip(first, second, strict=True))
        reasons: dict[str, None] = {}
        failures: list[ServerError] = []

        def ask(client: httpx2.Client, part: range) -> None:
            if failures:
                return  # one failure ends a call: the server would not answer the rest either
            try:
                p_NC[part.start : part.stop], refusals = self._ask(client, [rows[k] for k in part])
                reasons.update(dict.fromkeys(refusals))
            except ServerError as error:
                failures.append(error)

        with httpx2.Client(headers=self._headers) as client, ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(partial(ask, client), parts))
        if failures and np.isnan(p_NC).all():
            raise ServerError(self._shown(str(failures[0])))
        return p_NC, [self._shown(reason) for reason in [*reasons, *map(str, failures[:1])]]

    def _shown(self, text: str) -> str:
        """Returns a problem as it may be shown. A server may answer with the key or the address that it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text if len(text) <= MOST_MESSAGE else f"{text[:MOST_MESSAGE]}…"

    def _ask(self, client: httpx2.Client, rows: list[tuple[str, ...]]) -> tuple[Floats, list[str]]:
        """Requests some rows. Those of a refused request are sent one by one, because one of them may be the cause."""
        reply = self._chat if self._is_chat else self._predict
        try:
            return reply(client, rows)
        except RefusedError as error:
            if len(rows) == 1:
                return np.full((1, len(self.names)), np.nan, dtype=np.float32), [str(error)]
        answers = [self._ask(client, [row]) for row in rows]
        return np.concatenate([p_NC for p_NC, _ in answers]), [one for _, reasons in answers for one in reasons]

    def _predict(self, client: httpx2.Client, rows: list[tuple[str, ...]]) -> tuple[Floats, list[str]]:
        body = {"inputs": [list(row) for row in rows], "truncate": True}
        answers = self._post(client, body)
        if not isinstance(answers, list) or len(answers) != len(rows):
            raise ServerError(f"{self.name}: answered {_brief(answers)} to {len(rows)} inputs, not a list for each")
        p_NC = np.full((len(rows), len(self.names)), np.nan, dtype=np.float32)
        problems = []
        for number, answer in enumerate(answers):
            try:
                p_NC[number] = self._in_order(answer)
            except RefusedError as error:
                problems.append(str(error))
        if len(problems) == len(rows):
            raise ServerError(problems[0])
        return p_NC, problems

    def _in_order(self, answer: Any) -> Floats:
        """Returns the probabilities of an answer in the order of the task's labels. Servers have orders of their own.

        Raises:
            RefusedError: if the labels are others, or the scores no probabilities of one label.
        """
        try:
            scores = {one["label"]: float(one["score"]) for one in answer}
        except (TypeError, KeyError, ValueError) as error:
            raise RefusedError(f"{self.name}: answered {_brief(answer)}, not labels with scores") from error
        if scores.keys() != set(self.names) or len(answer) != len(self.names):
            raise RefusedError(f"{self.name}: its labels are {_brief(list(scores))}, not {', '.join(self.names)}")
        p_C = np.array([scores[name] for name in self.names], dtype=np.float32)
        if not np.isfinite(p_C).all() or (p_C < 0).any():
            raise RefusedError(f"{self.name}: its scores {p_C.tolist()} are no probabilities")
        if abs(p_C.sum() - 1) > SUM_TOLERANCE:
            raise RefusedError(
                f"{self.name}: its scores add up to {p_C.sum():.3g}, not to 1. Is it a model of several labels?"
            )
        return p_C

    def _chat(self, client: httpx2.Client, rows: list[tuple[str, ...]]) -> tuple[Floats, list[str]]:
        """Requests the label of one row. Its probability is 1."""
        (row,) = rows
        rule = f"Classify the text. Answer with one of these labels and nothing else: {', '.join(self.names)}"
        messages = [{"role": "system", "content": rule}, {"role": "user", "content": "\n\n".join(filter(None, row))}]
        answer = self._post(client, {"model": self._model, "temperature": 0, "messages": messages})
        try:
            choice = answer["choices"][0]
            content = choice["message"]["content"]
        except (TypeError, KeyError, IndexError) as error:
            raise ServerError(f"{self.name}: answered {_brief(answer)}, which is no chat completion") from error
        if not isinstance(content, str):
            raise RefusedError(f"{self.name}: answered no text ({_brief(choice)})")
        label = content.strip().strip(".\"'`").lower()
        found = [k for k, name in enumerate(self.names) if name.lower() == label]
        if len(found) != 1:
            raise RefusedError(f"{self.name}: answered {_brief(content)}, not one of {', '.join(self.names)}")
        return np.eye(len(self.names), dtype=np.float32)[found], []

    def _post(self, client: httpx2.Client, body: dict[str, Any]) -> Any:
        """Returns the JSON that the server answers. Repeats the request after 429 and 5xx while there is time."""
        deadline = time.monotonic() + self.timeout
        for number in range(TRIES):
            status, headers, content = _within(
                deadline, partial(self._exchange, client, body, deadline), self._too_late
            )
            wait = _retry_after(headers, FIRST_WAIT_S * 2**number)
            if status not in TRY_AGAIN or number + 1 == TRIES or not time.monotonic() + wait < deadline:  # or it is NaN
                break
            time.sleep(wait)
        if status != httpx2.codes.OK:
            problem = f"{self.name}: status {status}{_reason(content)}"
            raise (ServerError if status in OF_THE_SERVER or status >= 500 or status < 400 else RefusedError)(problem)
        try:
            return parse_json(content, may_be_nan=True)  # which costs one row its answer, see `_in_order`
        except ValueError as error:
            raise ServerError(f"{self.name}: answered {_brief(content)}, which is no JSON") from error

    def _exchange(
        self, client: httpx2.Client, body: dict[str, Any], deadline: float
    ) -> tuple[int, httpx2.Headers, bytes]:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            # Escaped, because a lone surrogate of a text cannot be UTF-8, and is for the server to refuse.
            with client.stream("POST", self._url, content=json.dumps(body), timeout=left) as response:
                content = bytearray()
                # The client's own timeout starts again with each piece, so a server could take any time.
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > MOST_ANSWER_BYTES:
                        raise ServerError(f"{self.name}: answered more than {MOST_ANSWER_BYTES:,} bytes")
                    if time.monotonic() > deadline:
                        break  # `_within` has given up
                return response.status_code, response.headers, bytes(content)
        except httpx2.TimeoutException as error:
            raise ServerError(self._too_late) from error
        except httpx2.HTTPError as error:
            # The words of an error may quote the headers of the request, and so a key.
            raise ServerError(f"{self.name}: {_kind(error)}") from None


def _key() -> str:
    """Returns the key in the environment, without the line break that a file may have added.

    Raises:
        ConfigError: if no header can hold the key.
    """
    key = os.environ.get(API_KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{API_KEY}: contains a character that no key has. Set it to the key alone.")
    return key


def _within(
    deadline: float, exchange: Callable[[], tuple[int, httpx2.Headers, bytes]], late: str
) -> tuple[int, httpx2.Headers, bytes]:
    """Returns the result of an exchange, or gives up at the deadline, whatever the server sends meanwhile.

    Raises:
        ServerError: if it failed, or takes longer.
    """
    results: list[tuple[int, httpx2.Headers, bytes]] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(exchange())
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    # A thread that nobody waits for ends with the process, even if the server sends a byte a second for ever.
    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    if not results or time.monotonic() > deadline:
        raise ServerError(late)
    return results[0]


def _retry_after(headers: httpx2.Headers, default: float) -> float:
    """Returns the seconds before the next try: those in the server's header, as a number or a date."""
    value = headers.get("Retry-After", "")
    with suppress(ValueError):
        return max(float(value), 0.0)
    with suppress(ValueError, TypeError):
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    return default


def _reason(content: bytes) -> str:
    """Returns what a server answered with an error, for a message: the text of its JSON, or the start of its body."""
    answer: Any = content.decode(errors="replace")
    with suppress(ValueError):
        answer = parse_json(content)
        for key in ("error", "message"):
            answer = answer.get(key, answer) if isinstance(answer, dict) else answer
    return f" ({_brief(answer)})" if answer else ""


def _brief(answer: Any) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return text[:MOST_QUOTED]


def _kind(error: httpx2.HTTPError) -> str:
    if isinstance(error, httpx2.ConnectError):
        return f"cannot be reached ({error})"
    if isinstance(error, httpx2.RemoteProtocolError):
        return "broke off, or its protocol is not HTTP"
    return f"the connection failed ({type(error).__name__})"
