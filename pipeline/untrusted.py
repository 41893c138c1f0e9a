"""Text of somebody else's, made fit to be shown."""

import html
import json
import math
import re
from collections import Counter
from textwrap import shorten
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but tab and line feed


def visible(text: str) -> str:
    """The text with its control characters spelt out, so that none of them reaches a terminal."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def plain(text: str) -> str:
    """Text for a line of Markdown: it stays on the line and is no markup."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("[", "\\[")


def code(text: str) -> str:
    """Text to stand between backticks of Markdown."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("`", "'")


def cell(sentences: tuple[str, ...]) -> str:
    """Sentences for a cell of a Markdown table: neither columns nor links of their own, and not too long."""
    text = visible(" ".join(" ‖ ".join(sentences).split()))
    safe = html.escape(shorten(text, 300, placeholder=" …"), quote=False)
    return safe.replace("|", "\\|").replace("](", "]\\(")


def parse_json(data: bytes | str, may_be_nan: bool = False) -> Any:
    """Reads JSON as its standard has it (RFC 8259), where Python's own reader looks away.

    Args:
        data: text, or UTF-8.
        may_be_nan: whether ``NaN`` and ``Infinity`` are numbers, too.

    Raises:
        ValueError: for a key that is there twice, ``NaN``, a number too large for a float, half a surrogate pair,
            another encoding, more levels than anybody needs, or what is no JSON at all.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        values = (_WITH_NAN if may_be_nan else _STRICT).decode(text)
        if "\\u" in text or isinstance(data, str):  # UTF-8 holds no half of a pair but as an escape
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a text") from error
    return values


def without_nan(value: Any) -> Any:
    """A value to be written as JSON, which has neither NaN nor Inf: they become null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def num_values(value: Any, besides: str | None = None) -> int:
    """Values of JSON at any depth: a wrong one costs hundreds of times its own bytes, as each gets a message.

    Args:
        value: the JSON.
        besides: a key whose values are not counted, as the lists that it has are bounded otherwise.
    """
    if isinstance(value, dict):
        parts = [part for key, part in value.items() if key != besides]
    else:
        parts = value if isinstance(value, list) else []
    return 1 + sum(num_values(part, besides) for part in parts)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


# made once: that takes longer than to read a line
_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite)
