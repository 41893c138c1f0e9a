"""From a configuration class to a Python function: one field is one keyword, its description the help text."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.config import Config, JsonFlags
from pipeline.errors import ConfigError, did_you_mean, raise_all
from pipeline.settings import Flag, flags, given

C = TypeVar("C", bound=Config)
R = TypeVar("R")


def takes_keywords(kind: type[C]) -> Callable[[Callable[[C], R]], Callable[..., R]]:
    """Gives a function a keyword for each flag of a command, and calls it with the configuration.

    What is a positional argument of the command may be one of the function, too.
    """
    known = {name: flag for name, flag in flags(kind).items() if name not in JsonFlags.model_fields}
    names = list(known)
    signature = inspect.Signature(list(map(_parameter, known.values())))
    helps = "".join(f"    {name}: {flag.help}\n" for name, flag in known.items())

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
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given(config).items())})"


def _parameter(flag: Flag) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if flag.is_argument else inspect.Parameter.KEYWORD_ONLY
    default: Any = inspect.Parameter.empty
    if not flag.field.is_required():
        default = flag.field.get_default(call_default_factory=True) if flag.is_shared_default else None
    return inspect.Parameter(flag.name, kind, default=default, annotation=flag.annotation)
