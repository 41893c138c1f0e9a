"""What a server behind a cascade may do wrong, and what an input gets then."""

from collections.abc import Callable, Iterator
from itertools import count
from time import monotonic
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from student.cascade.server import Server, ServerError
from tests.helpers.messages import naming
from tests.helpers.odd_server import http, odd_server, scores

NAMES = ("bad", "good")
NO_ANSWER = [np.nan, np.nan]


def good(body: dict[str, Any]) -> Any:
    return scores(0.75, 0.25, len(body["inputs"]))


def chat(text: str | None) -> dict[str, Any]:
    return {"choices": [{"finish_reason": "content_filter", "message": {"content": text}}]}


def in_turn(*answers: Any) -> Callable[[dict[str, Any]], Any]:
    """Gives one answer after another, and in the end the last one for ever."""
    number = count()
    return lambda _: answers[min(next(number), len(answers) - 1)]


def drips(first: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield b"\n"


def test_labels_are_matched_by_name_in_several_requests() -> None:
    with odd_server(good) as (url, sent):
        p_NC, reasons = Server(url, NAMES, 5).probabilities([str(k) for k in range(70)], None)
    assert (p_NC.tolist(), reasons) == ([[0.25, 0.75]] * 70, [])
    assert sorted(len(body["inputs"]) for _, body in sent) == [6, 32, 32]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([], ""),
        (scores(0.5, 0.5, 3), ""),
        ([[{"label": "bad", "score": 0.5}]] * 2, "bad"),
        ([[{"label": "bad", "score": 0.5}, {"label": "other", "score": 0.5}]] * 2, "other"),
        (scores(7, -6, 2), ""),
        (scores(0, 0, 2), "add up to 0"),
        (scores(0.9, 0.8, 2), "several labels"),
        ([[{"label": "bad", "score": None}, {"label": "good", "score": 0.5}]] * 2, ""),
        ({"error": "no"}, "no"),
        ("text", "text"),
    ],
)
def test_answers_that_are_no_probabilities_are_a_failure(answer: Any, named: str) -> None:
    with odd_server(lambda _: answer) as (url, _), pytest.raises(ServerError, match=naming(url, named)):
        Server(url, NAMES, 5).probabilities(["a", "b"], None)


def test_one_wrong_row_costs_no_other_its_answer() -> None:
    rows = [*scores(0.75, 0.25, 1), *scores(float("nan"), 0.25, 1), *scores(0.75, 0.25, 1)]
    with odd_server(lambda _: rows) as (url, _):
        p_NC, reasons = Server(url, NAMES, 5).probabilities(["a", "b", "c"], None)
    np.testing.assert_equal(p_NC, [[0.25, 0.75], NO_ANSWER, [0.25, 0.75]])
    assert len(reasons) == 1


def test_an_input_that_is_refused_is_found() -> None:
    def reply(body: dict[str, Any]) -> Any:
        return http({"error": "too long"}, "413 Payload Too Large") if ["poison"] in body["inputs"] else good(body)

    with odd_server(reply) as (url, _):
        p_NC, reasons = Server(url, NAMES, 5).probabilities(["a", "poison", "b"], None)
    np.testing.assert_equal(p_NC, [[0.25, 0.75], NO_ANSWER, [0.25, 0.75]])
    assert reasons == [f"{url}: status 413 (too long)"]


def test_a_chat_server_names_one_label_and_may_refuse_one_text() -> None:
    def reply(body: dict[str, Any]) -> Any:
        text = body["messages"][1]["content"]
        return chat(None if "poison" in text else "I do not know" if "odd" in text else " Good.")

    with odd_server(reply) as (url, sent):
        server = Server(f"{url}/v1/chat/completions?model=tiny&api-version=2", NAMES, 5)
        p_NC, reasons = server.probabilities(["a lovely wine", "poison", "odd"], ["", "x", "y"])
        assert server.probabilities([], None)[0].shape == (0, 2)
    np.testing.assert_equal(p_NC, [[0, 1], NO_ANSWER, NO_ANSWER])
    assert any("content_filter" in reason for reason in reasons)
    assert any("I do not know" in reason for reason in reasons)
    assert {(body["model"], body["temperature"]) for _, body in sent} == {("tiny", 0)}
    assert {head.partition("\r\n")[0] for head, _ in sent} == {"POST /v1/chat/completions?api-version=2 HTTP/1.1"}


@pytest.mark.parametrize(
    ("status", "header"),
    [
        ("429 Too Many Requests", "Retry-After: soon"),
        ("429 Too Many Requests", "Retry-After: 0"),
        ("503 Service Unavailable", "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"),
        ("500 Internal Server Error", "Retry-After: 0"),
    ],
)
def test_passing_failures_are_repeated(status: str, header: str) -> None:
    with odd_server(in_turn(http({}, status, header), http({}, status, header), scores(0.75, 0.25, 1))) as (url, sent):
        p_NC, reasons = Server(url, NAMES, 5).probabilities(["a"], None)
    assert (p_NC.tolist(), reasons, len(sent)) == ([[0.25, 0.75]], [], 3)


def test_a_long_wait_is_not_waited_for() -> None:
    answer = http({"error": {"message": "limit until noon"}}, "429 Too Many Requests", "Retry-After: 3600")
    with odd_server(lambda _: answer) as (url, sent), pytest.raises(ServerError, match=naming("429", "until noon")):
        Server(url, NAMES, 5).probabilities(["a"], None)
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (http({"error": {"message": "This key has expired"}}, "401 Unauthorized"), "This key has expired"),
        (http({"message": "unknown path"}, "404 Not Found"), "unknown path"),
        (http("", "302 Found", "Location: /elsewhere"), "302"),
        (b"\x15\x03\x01\x00\x02\x02\x50", ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n[[{", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{{{", "JSON"),
        (b"", ""),
    ],
)
def test_servers_that_fail(answer: bytes, named: str) -> None:
    with odd_server(lambda _: answer) as (url, _), pytest.raises(ServerError, match=naming(url, named)):
        Server(url, NAMES, 5).probabilities(["a", "b"], None)


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_server_that_drips_ends_at_the_deadline(first: bytes) -> None:
    start = monotonic()
    with odd_server(lambda _: drips(first)) as (url, _), pytest.raises(ServerError, match=naming(url)):
        Server(url, NAMES, 0.5).probabilities(["a"], None)
    assert monotonic() - start < 60  # and not for ever


@pytest.mark.parametrize("wait", ["nan", "inf", "-5"])
def test_a_wait_that_is_no_time_ends_like_any_failure(wait: str) -> None:
    answer = http({}, "503 Service Unavailable", f"Retry-After: {wait}")
    with odd_server(lambda _: answer) as (url, _), pytest.raises(ServerError, match=naming("503")):
        Server(url, NAMES, 5).probabilities(["a"], None)


def test_a_text_that_is_not_unicode_reaches_the_server() -> None:
    with odd_server(good) as (url, sent):
        p_NC, reasons = Server(url, NAMES, 5).probabilities(["a", "\ud800"], None)
    assert (p_NC.shape, reasons, sent[0][1]["inputs"][1]) == ((2, 2), [], ["\ud800"])


def test_answers_before_a_failure_stay() -> None:
    late = http({}, "500 Internal Server Error", "Retry-After: 99")
    with odd_server(lambda body: good(body) if len(body["inputs"]) == 32 else late) as (url, _):
        p_NC, reasons = Server(url, NAMES, 5).probabilities(["a"] * 33, None)
    assert np.isnan(p_NC[:, 0]).sum() in (1, 33 - 32)
    assert any("500" in reason for reason in reasons)


def test_no_part_of_an_address_that_may_be_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    echo = {"error": "hidden, aGlkZGVu, user:hidden" + " or so" * 99}
    with odd_server(lambda _: http(echo, "401 Unauthorized")) as (url, sent):
        place = url.replace("http://", "http://user:hidden@")
        server = Server(f"{place}/models/one?token=${{TOKEN}}", NAMES, 5)
        with pytest.raises(ServerError) as raised:
            server.probabilities(["a"], None)
    assert server.name == f"{url}/models/one"
    assert "hidden" not in str(raised.value)
    head = sent[0][0]
    assert head.startswith("POST /models/one/predict?token=hidden HTTP/1.1")
    assert "authorization: basic" in head.lower()


def test_a_key_is_sent_without_its_line_break_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\r\n")
    with odd_server(lambda _: chat("good")) as (url, sent):
        Server(f"{url}/chat/completions", NAMES, 5).probabilities(["a"], None)
    assert "Bearer sk-secret\r\n" in sent[0][0] + "\r\n"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-sec\nret")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as raised:
        Server("http://127.0.0.1:1/chat/completions", NAMES, 5)
    assert "sk-" not in str(raised.value)


def test_a_key_that_a_server_repeats_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with odd_server(lambda _: chat("x" * 255 + "sk-secret")) as (url, _):
        _, (reason,) = Server(f"{url}/chat/completions", NAMES, 5).probabilities(["a"], None)
    refusal = http({"error": "no key sk-secret"}, "401 Unauthorized")
    with odd_server(lambda _: refusal) as (url, _), pytest.raises(ServerError) as raised:
        Server(f"{url}/chat/completions", NAMES, 5).probabilities(["a"], None)
    assert "sk-s" not in reason + str(raised.value)


def test_a_variable_that_is_not_set() -> None:
    with pytest.raises(ConfigError, match=naming("NO_SUCH_VARIABLE")):
        Server("http://127.0.0.1:1/?token=${NO_SUCH_VARIABLE}", NAMES, 5)
