"""The one check of strings from outside before they reach the file system, SQL or a record.

Python reads bytes of the command line that are not UTF-8 as half surrogate pairs, which cannot be encoded again. A NUL
ends a name for the operating system. A device as an output path would be replaced by a file, or would discard the
output.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import DataError

MOST_SHOWN = 60  # characters
WRITTEN = {"output", "output_dir", "parquet", "onnx", "html", "store"}  # flags with paths of outputs


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
