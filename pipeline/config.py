"""Base of all command configurations: frozen, strict, and reporting every problem at once."""

from collections.abc import Iterable
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import ConfigError, did_you_mean, raise_all

M = TypeVar("M", bound=BaseModel)
MOST_SHOWN = 100  # characters of a wrong value
SPELLINGS = {"json_output": "--json"}  # pydantic's models have a method `json`


class Config(BaseModel):
    """A command's resolved configuration. Each field is one flag: its description is the flag's help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def from_flags(cls, **values: Any) -> Self:
        """Builds the configuration from flag values.

        Raises:
            ConfigError: with every flag that is out of range.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise_all(ConfigError, "wrong flags", [_flag_problem(e) for e in error.errors()])
            raise


def flag_name(field: str) -> str:
    """The command line's spelling of a field: ``max_seq_length`` -> ``--max-seq-length``."""
    return SPELLINGS.get(field, "--" + field.replace("_", "-"))


def refuse_flags(config: Config, fields: Iterable[str], reason: str) -> None:
    """Raises ConfigError for flags that were given and are not for this use of a command.

    Args:
        config: the configuration.
        fields: the flags' fields.
        reason: why not.
    """
    wrong = sorted(name for name in config.model_fields_set.intersection(fields) if getattr(config, name) is not None)
    raise_all(ConfigError, "wrong flags", [f"{flag_name(name)}: {reason}" for name in wrong])


def as_flags(config: Config) -> list[str]:
    """The command line that makes a configuration, as far as it was not left to defaults."""
    flags = []
    for name, value in config.model_dump(mode="json", include=config.model_fields_set).items():
        if value is True:
            flags.append(flag_name(name))
        elif value is False and type(config).model_fields[name].default is True:
            flags.append(flag_name(name).replace("--", "--no-", 1))
        elif value is not None and value is not False:
            for one in value if isinstance(value, list) else [value]:
                flags += [flag_name(name), str(one)]
    return flags


def parse_model(model: type[M], values: Any, subject: str) -> M:
    """Validates data read from a file, naming every wrong key.

    Args:
        model: what the data should be.
        values: the parsed YAML or JSON.
        subject: the file's name, for the message.

    Raises:
        ConfigError: with every unknown key, missing key and wrong value.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise_all(ConfigError, subject, [_key_problem(e, model) for e in error.errors()])
        raise


def _flag_problem(error: Any) -> str:
    where = flag_name(str(error["loc"][0])) if error["loc"] else "flags"
    got = f" (got {error['input']!r})" if error["loc"] else ""
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{got}"


def _key_problem(error: Any, model: type[BaseModel]) -> str:
    where = ".".join(str(part)[:MOST_SHOWN] for part in error["loc"])
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 1:
        return f"unknown key {where!r}: {did_you_mean(where, model.model_fields)}"
    if error["type"] == "missing":
        return f"missing key {where!r}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message} (got {_brief(error['input'])})" if where else message


def _brief(value: Any) -> str:
    """A value for a message; of a long text or list the beginning."""
    if isinstance(value, list | dict) and len(value) > MOST_SHOWN:
        return f"{len(value):,} values"
    text = repr(value[:MOST_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
