"""From settings to flags of the shell and keywords of Python: one field is one of each, its description the help."""

import glob
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.config import Config
from pipeline.environment import store_folder
from pipeline.settings import Flag, flag_name, flags

SET_FILE = "distill.json"  # `pipeline.sets.record` is too heavy to ask
NAME_SETS = {"set", "a", "b", "set_or_run", "extend"}  # fields that the names of sets are completed for
EVERYWHERE = {"json_output"}  # what every command of the shell has by itself
OF_THE_SHELL = {"csv"}  # how a result is printed, which is nothing to Python


def all_flags(kinds: dict[str, type[Config]]) -> list[Flag]:
    """Returns the flags of a command: arguments, then those that choose a kind of settings, those of all, the rest.

    Args:
        kinds: the settings, by the flag that chooses each.
    """
    names = dict.fromkeys(name for kind in kinds.values() for name in flags(kind) if name not in EVERYWHERE)
    first = {name: flag for kind in reversed(kinds.values()) for name, flag in flags(kind).items()}
    shared = {name for name in names if all(name in flags(kind) for kind in kinds.values())}

    def place(name: str) -> tuple[bool, bool, bool]:
        return not first[name].is_argument, name not in kinds, name not in shared

    return [first[name] for name in sorted(names, key=place)]


def set_names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the sets of the store whose names begin so, for the shell."""
    store = Path(context.params.get("store") or store_folder())
    return sorted(path.parent.name for path in store.glob(f"{glob.escape(incomplete)}*/{SET_FILE}"))


def option(flag: Flag) -> inspect.Parameter:
    """Returns what typer makes a flag or an argument of."""
    complete = set_names if flag.name in NAME_SETS else None
    if flag.is_argument:
        info = typer.Argument(help=flag.help, show_default=not flag.field.is_required(), autocompletion=complete)
    else:
        info = typer.Option(
            _spelling(flag),
            *(flag_name(alias) for alias in flag.aliases),
            help=flag.help,
            rich_help_panel=flag.panel,
            autocompletion=complete,
        )
    default = _default(flag)
    kind: Any = list[str] if flag.annotation == tuple[str, ...] else flag.annotation  # typer's way to say "several"
    return inspect.Parameter(
        flag.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=list(default) if isinstance(default, tuple) else default,
        annotation=Annotated[kind, info],
    )


def keyword(flag: Flag) -> inspect.Parameter:
    """Returns the parameter of a Python function for a flag or an argument."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if flag.is_argument else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(flag.name, kind, default=_default(flag), annotation=flag.annotation)


def _spelling(flag: Flag) -> str:
    name = flag_name(flag.name)
    return f"{name}/--no-{name.removeprefix('--')}" if flag.field.default is True else name


def _default(flag: Flag) -> Any:
    """The default that ``--help`` shows; where members of a union differ in it, their descriptions name theirs."""
    if flag.field.is_required():
        return inspect.Parameter.empty
    return flag.field.get_default(call_default_factory=True) if flag.is_shared_default else None
