"""Checks of YAML, JSON and comma-separated names that users write. Every problem of a file is reported at once."""

import csv
import io
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.errors import ConfigError, did_you_mean, own_words, raise_all
from pipeline.settings import S, build, flags
from pipeline.untrusted import string_problem, strings_in

M = TypeVar("M", bound=BaseModel)
MOST_SHOWN = 100  # characters of a wrong value
MERGE = "tag:yaml.org,2002:merge"  # the key <<
IN_WORDS = {  # pydantic's messages use Python's terms
    "dict_type": "should be keys with values",
    "model_type": "should be keys with values",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
}


class _Loader(yaml.SafeLoader):
    """Reads YAML, and collects keys that are twice in a mapping. PyYAML would silently take the last one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[Any, int] = {}
        # Before merge keys (<<) add those of other mappings, which a mapping may override.
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                line, name = key.start_mark.line + 1, self.construct_object(key)
                if name in first:
                    shown = repr(name)[:MOST_SHOWN]
                    self.problems.append(f"line {line}: the key {shown} is there twice, first in line {first[name]}")
                first.setdefault(name, line)
        return node


def parse_yaml(text: str, context: str) -> Any:
    """Reads YAML.

    Args:
        text: the content of a file.
        context: the file's name, for the message.

    Raises:
        ConfigError: if it is not YAML, a key is twice in a mapping, or a text cannot be encoded.
    """
    try:
        loader = _Loader(text)
        values = loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:  # the latter by odd tags
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{context}: not YAML: {reason}") from error
    of_strings = [problem for text in strings_in(values) if (problem := string_problem(text))]
    raise_all(ConfigError, context, loader.problems + of_strings)
    return values


def parse_settings(kind: type[S], values: Mapping[Any, Any], subject: str) -> S:
    """Builds settings from a file, flag by flag.

    Raises:
        ConfigError: with every unknown key, wrong value, and flag of a part that was not chosen.
    """
    known = flags(kind)
    unknown = [f"unknown key {str(name)!r}. {did_you_mean(str(name), known)}" for name in values if name not in known]
    return build(kind, {name: value for name, value in values.items() if name in known}, unknown, subject)


def names_of(text: str | None) -> tuple[str, ...]:
    """Returns the names in a comma-separated flag. A name with a comma is put into double quotes."""
    rows = csv.reader([text or ""], skipinitialspace=True)
    return tuple(name.strip() for row in rows for name in row if name.strip())


def as_names(names: Sequence[str]) -> str:
    """Returns names in the form that `names_of` reads."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def parse_model(model: type[M], values: Any, context: str) -> M:
    """Validates data read from a file, naming every wrong key.

    Args:
        model: what the data should be.
        values: the parsed YAML or JSON.
        context: the file's name, for the message.

    Raises:
        ConfigError: with every unknown key, missing key and wrong value.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise_all(ConfigError, context, [_key_problem(e, model) for e in _innermost(error.errors())])
        raise


def _innermost(errors: Sequence[Any]) -> list[Any]:
    """Returns the errors without those that only follow from another error in the same list or dictionary."""
    places = [error["loc"] for error in errors]
    return [one for one in errors if not one["loc"] or not any(_is_within(place, one["loc"]) for place in places)]


def _is_within(place: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _key_problem(error: Any, model: type[BaseModel]) -> str:
    where = ".".join(str(part)[:MOST_SHOWN] for part in error["loc"])
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        return f"unknown key {where!r}. {did_you_mean(where, model.model_fields)}"
    if error["type"] == "missing":
        return f"missing key {where!r}"
    message = IN_WORDS.get(error["type"], own_words(error["msg"]))
    is_unquoted = error["type"] == "string_type" and isinstance(error["input"], int | float)  # yes and no in YAML
    advice = ". Put it in quotes" if is_unquoted else ""
    return f"{where}: {message} (got {_brief(error['input'])}){advice}" if where else message


def _repr(value: Any) -> str:
    """Returns a `repr` with limited nesting, because the full one of a few lines of YAML can fill the memory."""
    shown = reprlib.Repr()
    shown.maxlist = shown.maxdict = shown.maxtuple = shown.maxstring = shown.maxother = MOST_SHOWN
    shown.maxlevel = 2
    return shown.repr(value)


def _brief(value: Any) -> str:
    """Returns a value for a message. Long texts and lists are truncated."""
    if isinstance(value, list | dict) and len(value) > MOST_SHOWN:
        return f"{len(value):,} values"
    text = repr(value[:MOST_SHOWN]) if isinstance(value, str) else _repr(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
