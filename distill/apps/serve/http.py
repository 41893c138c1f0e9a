"""Requests and answers as ASGI has them, within bounds of size and time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BODY_SECONDS = 30
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class RefusedError(Exception):
    """A request that gets no answer.

    Args:
        status: of HTTP.
        kind: one of text-embeddings-inference's error types.
        message: what is wrong, and what to do.
        headers: that belong to the status.
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, dict(headers or {})


@dataclass(frozen=True)
class Reply:
    """An answer as it goes out."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: Any) -> Reply:
    """An answer that is JSON; raises ValueError for numbers that JSON has no way to write."""
    return Reply(ENCODER.encode(value).encode())


def refusal(error: RefusedError) -> Reply:
    """What a client is told of a request that was refused."""
    body = json.dumps({"error": str(error), "error_type": error.kind}).encode()
    return Reply(body, status=error.status, headers=error.headers)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body of a request.

    Raises:
        RefusedError: if it has more than ``limit`` bytes, or does not arrive in time.
    """
    length = header(scope, b"content-length")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(408, "Validation", "the connection ended before the request did")
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError as error:
        raise RefusedError(408, "Validation", f"the request took longer than {BODY_SECONDS} s to arrive") from error


def header(scope: Scope, name: bytes) -> bytes:
    """The value of a request's header; empty if it has none."""
    return next((value for key, value in scope["headers"] if key == name), b"")


async def send_reply(send: Send, reply: Reply) -> None:
    """Sends an answer. After a refusal the connection ends, as the rest of the request may still be on its way."""
    headers = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % len(reply.body))]
    headers += [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    if reply.status >= 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, "Validation", f"the request has more than {limit:,} bytes; send several")
