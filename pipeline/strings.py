"""The one check of strings from outside before they reach the file system, SQL or a record.

Python reads bytes of the command line that are not UTF-8 as half surrogate pairs, which nothing can write again. A NUL
ends a name for the operating system. A device in place of an output would be replaced by a file, or swallow it.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_SHOWN = 60  # characters
WRITTEN = {"output", "output_dir", "parquet", "onnx", "html", "store"}  # flags that name what a command writes


def string_problem(text: str) -> str | None:
    """Returns what keeps a text from being written or handed on, with the remedy, or None if nothing does."""
    if "\0" in text:
        return f"holds a NUL character, {_shown(text)}. Remove it."
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f"holds bytes that are not UTF-8, {_shown(text)}. Write it in UTF-8."
    return None


def flag_problem(name: str, value: object) -> str | None:
    """Returns what is wrong with the strings in a flag's value, or None if nothing is.

    Args:
        name: of the flag's field.
        value: as given: a text, a path, or several.
    """
    for text in strings_in(value):
        problem = string_problem(text)
        if problem is None and name in WRITTEN and _is_device(Path(text)):
            problem = f"is a device and not a file, {text!r}. Choose a file or a folder."
        if problem is not None:
            return problem
    return None


def strings_in(value: Any) -> Iterator[str]:
    """Yields the texts and paths in a value, at any depth; what is in it several times, as in YAML, once."""
    seen, left = set[int](), [value]
    while left:
        part = left.pop()
        if isinstance(part, str | os.PathLike):
            yield str(part)
        elif isinstance(part, Mapping | list | tuple) and id(part) not in seen:
            seen.add(id(part))
            left += [*part.keys(), *part.values()] if isinstance(part, Mapping) else part


def _is_device(path: Path) -> bool:
    _, *folders = path.absolute().parts
    if folders[:1] in (["dev"], ["proc"]) and folders[:2] != ["dev", "shm"]:  # also a link there to a plain file
        return True
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:
        return False


def _shown(text: str) -> str:
    return ascii(text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…")
