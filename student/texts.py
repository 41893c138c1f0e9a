"""Converts collections of texts in Python to lists: tuples, arrays, Series, Arrow, generators."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

from pipeline.errors import ConfigError, DataError

Texts = tuple[list[Any], list[str] | None]  # the first sentences, and of pairs the second ones
BLANK = "nothing but white space"  # an input that `predict` and `serve` refuse


def has_text(row: Iterable[Any]) -> bool:
    """Returns whether any text of an input has a visible character. Lists of words count as text.

    The rule is that of `pipeline.sources.columns.blank`, without Arrow, which a file of a student does without.
    """
    return any(not isinstance(text, str) or any(map(_is_visible, text)) for text in row)


def _is_visible(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] != "Z" and category not in ("Cc", "Cf")


def listed(texts: Iterable[Any]) -> list[Any]:
    """Returns the values of a column of texts as a list. Its reader checks that each is a text.

    Args:
        texts: any ordered collection or iterator, including NumPy's arrays, pandas' Series and Arrow's arrays.

    Raises:
        ConfigError: if it is one text, a table, or without an order.
    """
    if isinstance(texts, str | bytes):
        raise ConfigError("give lists of sentences, not one string")
    if hasattr(texts, "columns"):
        raise ConfigError("give lists of sentences, such as a column of the table, not the table")
    if isinstance(texts, Mapping | set | frozenset) or not isinstance(texts, Iterable):
        raise ConfigError(f"give lists of sentences, not a {type(texts).__name__}")
    if hasattr(texts, "to_pylist"):  # Arrow arrays, whose own iterator returns scalars
        return list(texts.to_pylist())
    return list(texts)


def is_sequence(value: Any) -> bool:
    """Returns whether a value is a sequence and no text: a list, a tuple, an array or a Series."""
    is_other = isinstance(value, str | bytes | Mapping | set | frozenset) or hasattr(value, "columns")
    return isinstance(value, Iterable) and isinstance(value, Sized) and not is_other


def unzipped(rows: list[Any]) -> tuple[list[str], list[str]]:
    """Returns the first and the second texts of pairs.

    Raises:
        DataError: if a row is anything else, naming it.
    """
    for number, row in enumerate(rows):
        if not is_sequence(row) or len(row) != 2:
            raise DataError(f"sentence {number} (from 0) is {row!r:.80}, not a pair of texts")
    return [first for first, _ in rows], [second for _, second in rows]


def taken(first: Sequence[str], second: Sequence[str] | None, rows: Iterable[int]) -> Texts:
    """Returns some of the first sentences, and of the second ones."""
    places = list(rows)
    return [first[k] for k in places], None if second is None else [second[k] for k in places]
