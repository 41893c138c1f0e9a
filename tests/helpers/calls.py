"""Which functions are called, in a test that lets them do their work."""

from collections.abc import Callable
from typing import Any

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, functions: dict[str, tuple[object, str]]) -> list[str]:
    """A list that grows by a function's label with each of its calls.

    Args:
        monkeypatch: puts itself between.
        functions: the module or class that calls each, and the name it has there, by label.
    """
    calls: list[str] = []
    for label, (module, name) in functions.items():
        monkeypatch.setattr(module, name, _counting(calls, label, getattr(module, name)))
    return calls


def _counting(calls: list[str], label: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(label)
        return original(*arguments)

    return counted
