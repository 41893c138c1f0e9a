"""From a configuration class to a Python function: one field is one keyword, its description the help text."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.config import Config, JsonFlags, flag_help, flag_order, is_argument
from pipeline.errors import ConfigError, did_you_mean, raise_all

C = TypeVar("C", bound=Config)
R = TypeVar("R")


def takes_keywords(kind: type[C]) -> Callable[[Callable[[C], R]], Callable[..., R]]:
    """Gives a function a keyword for each flag of a command, and calls it with the configuration.

    What is a positional argument of the command may be one of the function, too.
    """
    names = [name for name in flag_order(kind) if name not in JsonFlags.model_fields]
    signature = inspect.Signature([_parameter(kind, name) for name in names])
    helps = "".join(f"    {name}: {flag_help(kind, name)}\n" for name in names)

    def decorate(function: Callable[[C], R]) -> Callable[..., R]:
        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> R:
            unknown = [name for name in keywords if name not in names]
            raise_all(ConfigError, "wrong keywords", [f"{name!r}: {did_you_mean(name, names)}" for name in unknown])
            return function(kind.from_flags(**signature.bind(*arguments, **keywords).arguments))

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{helps}"
        return run

    return decorate


def call_text(name: str, config: Config) -> str:
    """A call as somebody may have typed it, for the record."""
    given = [key for key in type(config).model_fields if key in config.model_fields_set]
    return f"{name}({', '.join(f'{key}={getattr(config, key)!r}' for key in given)})"


def _parameter(config: type[Config], name: str) -> inspect.Parameter:
    field = config.model_fields[name]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_argument(field) else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, kind, default=default, annotation=field.annotation)
