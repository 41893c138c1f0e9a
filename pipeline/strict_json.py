"""JSON of somebody else's that has one reading only: no key twice, no number that JSON does not know."""

import json
import math
from collections import Counter
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """Reads JSON as its standard has it (RFC 8259), where Python's own reader looks away.

    Args:
        data: text, or UTF-8.

    Raises:
        ValueError: for a key that is there twice, ``NaN``, a number too large for a float, half a surrogate pair,
            another encoding, more levels than anybody needs, or what is no JSON at all.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        values = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a text") from error
    return values


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
