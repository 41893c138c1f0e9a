"""Checks of strings and JSON from outside, and text from untrusted files that is safe to show.

Python reads bytes of the command line that are not UTF-8 as half surrogate pairs, which cannot be encoded again. A NUL
ends a name for the operating system. A device as an output path would be replaced by a file, or would discard the
output.
"""

import html
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from pipeline.errors import DataError

# All control characters except tab and line feed. Escape sequences could rename a terminal's window, move its cursor
# or hide text. Lone surrogates cannot be encoded as UTF-8 and would end the command.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_SHOWN = 60  # characters
WRITTEN = {"output", "output_dir", "parquet", "onnx", "html", "store"}  # flags with paths of outputs


def visible(text: str) -> str:
    """Returns the text with its control characters escaped, so that none of them reaches a terminal."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def plain(text: str) -> str:
    """Returns text for one line of Markdown, with line breaks and markup removed."""
    # HTML is escaped because Markdown passes it through, and "[" because it begins a link or an image.
    return html.escape(visible(" ".join(text.split())), quote=False).replace("[", "\\[")


def code(text: str) -> str:
    """Returns text that can stand between backticks in Markdown."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("`", "'")


def cell(sentences: tuple[str, ...]) -> str:
    """Returns sentences for a cell of a Markdown table, without column separators and links, and not too long."""
    text = visible(" ".join(" ‖ ".join(sentences).split()))
    safe = html.escape(shorten(text, 300, placeholder=" …"), quote=False)
    return safe.replace("|", "\\|").replace("](", "]\\(")


def parse_json(data: bytes | str, may_be_nan: bool = False) -> Any:
    """Parses JSON strictly as in RFC 8259, where Python's own parser is more lenient.

    Args:
        data: text, or UTF-8.
        may_be_nan: whether ``NaN`` and ``Infinity`` are accepted.

    Raises:
        ValueError: for a repeated key, ``NaN``, a number too large for a float, half a surrogate pair, another
            encoding, very deep nesting, or text that is not JSON.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        values = (_WITH_NAN if may_be_nan else _STRICT).decode(text)
        # Decoded UTF-8 contains a lone surrogate only if an escape such as \\ud800 produced it.
        if "\\u" in text or isinstance(data, str):
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a text") from error
    return values


def without_nan(value: Any) -> Any:
    """Returns a value with null in place of NaN and Inf at any depth, because JSON has neither."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def num_values(value: Any, besides: str | None = None) -> int:
    """Counts JSON values at any depth. Each invalid one costs hundreds of times its own bytes in error messages.

    Args:
        value: the JSON value.
        besides: a key whose values are not counted, because its lists have other limits.
    """
    if isinstance(value, dict):
        parts = [part for key, part in value.items() if key != besides]
    else:
        parts = value if isinstance(value, list) else []
    return 1 + sum(num_values(part, besides) for part in parts)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    # Parsers disagree on which of two equal keys counts, so a checksum or a check could see another value than we do.
    if len(values) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:40]!r} is repeated")
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


# Built once, because building a decoder takes longer than parsing a line.
_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite)


def string_problem(text: str) -> str | None:
    """Returns why a text cannot be stored or passed on, with the remedy, or None."""
    if "\0" in text:
        return f"contains a NUL character, {_shown(text)}. Remove it."
    if not _is_unicode(text):
        return f"contains bytes that are not UTF-8, {_shown(text)}. Write it in UTF-8."
    return None


def flag_problem(name: str, value: object) -> str | None:
    """Returns the problem of the strings in a flag's value, or None.

    Args:
        name: the name of the flag's field.
        value: the given value: a text, a path, or several.
    """
    for text in strings_in(value):
        problem = string_problem(text)
        if problem is None and name in WRITTEN and _is_device(Path(text)):
            problem = f"is a device and not a file, {text!r}. Choose a file or a folder."
        if problem is not None:
            return problem
    return None


def strings_in(value: Any) -> Iterator[str]:
    """Yields the texts and paths in a value at any depth. Repeated objects, as in YAML, are visited once."""
    seen, left = set[int](), [value]
    while left:
        part = left.pop()
        if isinstance(part, str | os.PathLike):
            yield str(part)
        elif isinstance(part, Mapping | list | tuple) and id(part) not in seen:
            seen.add(id(part))
            left += [*part.keys(), *part.values()] if isinstance(part, Mapping) else part


def require_text(parts: Iterable[Sequence[Any]], first_row: int) -> None:
    """Checks that all sentences are text.

    Args:
        parts: the first sentences, and the second ones of pairs.
        first_row: the number of the first sentence, for messages.

    Raises:
        DataError: if a sentence is not text, naming it.
    """
    for sentences in parts:
        for row, text in enumerate(sentences, first_row):
            if not isinstance(text, str):
                raise DataError(f"sentence {row} (from 0) is {text!r:.80}, not text")
            if not _is_unicode(text):
                what = "half a surrogate pair, a sign of bytes that are not UTF-8"
                raise DataError(f"sentence {row} (from 0) has {what}: {text[:MOST_SHOWN]!r}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_device(path: Path) -> bool:
    _, *folders = path.absolute().parts
    # also for a link in such a folder to a plain file
    if folders[:1] in (["dev"], ["proc"]) and folders[:2] != ["dev", "shm"]:
        return True
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:
        return False


def _shown(text: str) -> str:
    return ascii(text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…")
