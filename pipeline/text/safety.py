"""Checks of somebody else's ``tokenizer.json``, for the library trusts the file, and dies of a bad one.

A few kilobytes can ask for more memory than there is: normalizers that replace one letter by a hundred, one after the
other, or templates that add a special token a million times. Patterns that backtrack for ever are no such danger: the
library's regular expressions give up.
"""

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import DataError, DistillError, IntegrityError, unless_passing

MAX_TOKENS = 2**20
MAX_GROWTH = 1000  # characters that normalizers may make of one
MAX_SPECIAL_TOKENS = 64  # that a template may put around a text


def size_problem(content: dict[str, Any]) -> str | None:
    """What is wrong if there are more tokens than any tokenizer has; else None."""
    model = content.get("model")
    parts = (model.get("vocab") if isinstance(model, dict) else None, content.get("added_tokens"))
    count = sum(len(part) for part in parts if isinstance(part, list | dict))
    return f"it has {count:,} tokens, more than {MAX_TOKENS:,}" if count > MAX_TOKENS else None


def growth_problem(content: dict[str, Any]) -> str | None:
    """What is wrong if a few words could become more text, or more tokens, than memory holds; else None."""
    growth = math.prod(map(_growth, _parts(content.get("normalizer"))))
    if growth > MAX_GROWTH:
        return f"its normalizer may make {growth:,} characters of one"
    templates = [part for part in _parts(content.get("post_processor")) if "single" in part]
    if len(templates) > 1 or sum(map(_special_tokens, templates)) > MAX_SPECIAL_TOKENS:
        return f"its template puts more than {MAX_SPECIAL_TOKENS} special tokens around a text"
    return None


def vocabulary_problem(tokenizer: Tokenizer) -> str | None:
    """What is wrong if the largest id is far beyond the number of tokens (students have a row an id); else None."""
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids or max(ids) > 2 * len(ids) + 1000:
        return f"its ids go up to {max(ids, default=0):,}, but it has {len(ids):,} tokens"
    return None


@contextmanager
def reported(failure: str, kind: type[DistillError] = IntegrityError) -> Iterator[None]:
    """Turns what a library raises, Rust's panics included, into an error that begins with ``failure``.

    Args:
        failure: what could not be done; the first line of the library's own words follows.
        kind: the error's class.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            told = unless_passing(kind, error) if kind is DataError else kind
            raise told(f"{failure}: {reason}") from error
        raise


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """The dictionaries in a part of a ``tokenizer.json``, itself first."""
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []


def _growth(part: dict[str, Any]) -> int:
    """How many characters a normalizer may make of one, or of nothing."""
    added = [part[name] for name in ("content", "prepend") if isinstance(part.get(name), str)]
    return 1 + sum(map(len, added)) + _longest_mapping(part.get("precompiled_charsmap"))


def _longest_mapping(charsmap: Any) -> int:
    """Bytes of the longest text in SentencePiece's table of characters: a trie, then texts that end in a zero."""
    if not isinstance(charsmap, str):
        return 0
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        return 0  # the library refuses it by itself
    trie = 4 + int.from_bytes(table[:4], "little")
    return max(map(len, table[trie:].split(b"\0")))


def _special_tokens(template: dict[str, Any]) -> int:
    """Special tokens of a template for one text and for two, with all their ids."""
    templates = (template.get(name) for name in ("single", "pair"))
    pieces = sum(len(pieces) for pieces in templates if isinstance(pieces, list | str))
    ids = [part["ids"] for part in _parts(template.get("special_tokens")) if isinstance(part.get("ids"), list)]
    return pieces * max(map(len, ids), default=1)
