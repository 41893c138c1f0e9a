"""From a configuration class to flags: one field is one option, its description the help text."""

import functools
import glob
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypeVar, overload

import typer

from pipeline import console, log
from pipeline.config import Config, build_kind
from pipeline.environment import store_folder
from pipeline.errors import DistillError, MissingDependencyError, PassingError, passes
from pipeline.limits import limit_reached
from pipeline.settings import Flag, flag_name, flags
from pipeline.stopping import GO_ON, Stopped, heeds_signals

SET_FILE = "distill.json"  # `pipeline.sets.record` is too heavy to ask
NAME_SETS = {"logits", "a", "b", "set_or_run", "extend"}  # fields that the names of sets are completed for
LOG_FILE = inspect.Parameter(
    "log_file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[Path | None, typer.Option(help="Append what happens to this file, a JSON object a line.")],
)
A = TypeVar("A", bound=Config)
B = TypeVar("B", bound=Config)
Command = Callable[..., None]


@overload
def takes(config: type[A], /) -> Callable[[Callable[[A], None]], Command]: ...
@overload
def takes(one: type[A], other: type[B], /, *, by: tuple[str, str]) -> Callable[[Callable[[A | B], None]], Command]: ...
def takes(*kinds: type[Config], by: tuple[str, ...] = ("",)) -> Callable[[Callable[[Any], None]], Command]:
    """Gives a command one option per field of a configuration and calls it with the configuration.

    Of several kinds it offers the flags of all, and calls the command with the kind that the flags are for.
    Only what the user has typed is passed on, so that the configuration knows (``model_fields_set``) what was chosen.

    Args:
        kinds: the configuration; fields whose JSON-schema extra has ``argument: true`` become positional arguments.
        by: for each of several kinds the flag that chooses it; without any of them it is the first.
    """
    by_flag = dict(zip(by, kinds, strict=True))

    def decorate(command: Callable[[Any], None]) -> Command:
        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            command(build_kind(by_flag, {name: value for name, value in values.items() if _typed(context, name)}))

        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        parameters += [*_parameters(by_flag), LOG_FILE]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return _logged(reports_errors(run))

    return decorate


def set_names(context: typer.Context, incomplete: str) -> list[str]:
    """The sets of the store whose names begin so, for the shell."""
    store = Path(context.params.get("store") or store_folder())
    return sorted(path.parent.name for path in store.glob(f"{glob.escape(incomplete)}*/{SET_FILE}"))


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turns what ends a command before its time into one message and an exit code; docs/cluster.md lists these."""

    @functools.wraps(command)
    def run(*args: Any, **values: Any) -> None:
        try:
            with heeds_signals():
                command(*args, **values)
        except DistillError as error:
            console.error(str(error))
            raise typer.Exit(error.exit_code) from error
        except (typer.Exit, BrokenPipeError):  # a RuntimeError, to Python; a reader that has seen enough
            raise
        except Exception as error:
            reason = limit_reached(error)
            if reason is None and not passes(error):
                raise
            console.error(reason or f"{error}; repeat the command once this is mended: what is finished is kept")
            raise typer.Exit(PassingError.exit_code if passes(error) else 2) from error
        except (KeyboardInterrupt, Stopped) as error:
            is_stopped = isinstance(error, Stopped)
            console.note(f"{'stopped' if is_stopped else 'interrupted'}; {GO_ON}")
            raise typer.Exit(143 if is_stopped else 130) from error

    return run


def _logged(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command's log the place that ``--log-file`` names."""

    @functools.wraps(command)
    def run(*args: Any, log_file: Path | None = None, **values: Any) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(log.written_to(log_file))
            except OSError as error:
                console.error(f"--log-file {log_file}: cannot be written: {error.strerror}; choose another file")
                raise typer.Exit(2) from error
            command(*args, **values)

    return run


def command_line() -> str:
    """The command as the user typed it, for the record."""
    return shlex.join(["distill", *sys.argv[1:]])


def needs_teacher_libraries() -> None:
    """As `needs_libraries`, for what any command with a teacher needs."""
    needs_libraries("the teacher stage", "teacher", "datasets", "sentencex", "transformers")


def needs_libraries(what: str, extra: str, *names: str) -> None:
    """Raises MissingDependencyError, telling how to install the extra, unless these of its libraries are there.

    Args:
        what: needs them, for the message.
        extra: of the package, that brings them.
        names: of the modules.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"{what} needs {', '.join(missing)}: pip install 'distill-offline[{extra}]'")


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameters(kinds: dict[str, type[Config]]) -> list[inspect.Parameter]:
    """The flags of all kinds: those that choose one, those of all, those of one kind alone."""
    by_name = {name: flag for kind in reversed(kinds.values()) for name, flag in flags(kind).items()}
    names = dict.fromkeys(name for kind in kinds.values() for name in flags(kind))
    shared = {name for name in names if all(name in flags(kind) for kind in kinds.values())}
    return [
        _parameter(by_name[name]) for name in sorted(names, key=lambda name: (name not in kinds, name not in shared))
    ]


def _parameter(flag: Flag) -> inspect.Parameter:
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
    default = inspect.Parameter.empty if flag.field.is_required() else _default(flag)
    kind: Any = list[str] if flag.annotation == tuple[str, ...] else flag.annotation  # typer's way to say "several"
    annotation = Annotated[kind, info]
    return inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _spelling(flag: Flag) -> str:
    name = flag_name(flag.name)
    return f"{name}/--no-{name.removeprefix('--')}" if flag.field.default is True else name


def _default(flag: Flag) -> Any:
    """What ``--help`` shows as the default; members of a union that differ in it name theirs in the description."""
    value = flag.field.get_default(call_default_factory=True) if flag.is_shared_default else None
    return list(value) if isinstance(value, tuple) else value
