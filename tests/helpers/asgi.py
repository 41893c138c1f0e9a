"""Requests to an ASGI application, without a server between."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

Application = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Answered:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(
    app: Application, method: str, path: str, body: object = b"", headers: Mapping[str, str] | None = None
) -> Answered:
    """One request; a body that is no bytes goes as JSON."""
    return asyncio.run(asking(app, method, path, body, headers))


async def asking(
    app: Application, method: str, path: str, body: object = b"", headers: Mapping[str, str] | None = None
) -> Answered:
    """The same, for several at once."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = [data[: len(data) // 2], data[len(data) // 2 :]]  # as bodies come over a network
    messages = [{"type": "http.request", "body": part, "more_body": not k} for k, part in enumerate(parts)]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": encoded}
    await app(scope, receive, send)
    start, end = sent
    return Answered(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, end["body"])
