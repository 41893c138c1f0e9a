"""``@command``: one function is a command of the shell, which prints its result, and a function of Python.

One field of the settings is one flag and one keyword, its description the help.
"""

import functools
import glob
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import typer

from distill.result import Result
from pipeline import console, log
from pipeline.environment import store_folder
from pipeline.errors import (
    ConfigError,
    DistillError,
    MissingDependencyError,
    PassingError,
    did_you_mean,
    limit_reached,
    passes,
    raise_all,
)
from pipeline.interrupts import GO_ON, Stopped, handling_signals
from pipeline.settings import Flag, Settings, build, flag_name, flags
from pipeline.untrusted import flag_problem, string_problem
from student.texts import is_sequence, listed

# Repeated here: importing `pipeline.sets.record` would slow down shell completion.
SET_FILE = "distill.json"
NAME_SETS = {"set", "a", "b", "set_or_run", "extend"}  # fields for which the shell completes names of sets
EVERYWHERE = {"json_output"}  # flags that every command of the shell gets from SHELL_FLAGS
# Flags that only affect printing, so Python functions do not have them.
OF_THE_SHELL = {"csv"}


def all_flags(kind: type[Settings]) -> list[Flag]:
    """Returns the flags of a command in the order of ``--help``, without those that the shell's commands all have."""
    return [flag for name, flag in flags(kind).items() if name not in EVERYWHERE]


def set_names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the sets of the store whose names begin so, for the shell."""
    store = Path(context.params.get("store") or store_folder())
    return sorted(path.parent.name for path in store.glob(f"{glob.escape(incomplete)}*/{SET_FILE}"))


def option(flag: Flag) -> inspect.Parameter:
    """Returns what typer makes a flag or an argument of."""
    complete = set_names if flag.name in NAME_SETS else None
    if flag.is_argument:
        info = typer.Argument(help=flag.help, show_default=not flag.is_required, autocompletion=complete)
    else:
        name = flag_name(flag.name)
        info = typer.Option(
            f"{name}/--no-{name.removeprefix('--')}" if flag.field.default is True else name,
            *(flag_name(alias) for alias in flag.aliases),
            help=flag.help,
            rich_help_panel=flag.panel,
            autocompletion=complete,
        )
    default = _default(flag)
    kind: Any = list[str] if flag.annotation == tuple[str, ...] else flag.annotation  # typer repeats a flag for a list
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


def _default(flag: Flag) -> Any:
    return inspect.Parameter.empty if flag.is_required else flag.default


S = TypeVar("S", bound=Settings)
Function = Callable[..., Result]
SHELL_FLAGS = {
    "json_output": (False, Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]),
    "log_file": (
        None,
        Annotated[Path | None, typer.Option(help="Append events to this file, one JSON object per line.")],
    ),
}


class Call(NamedTuple):
    """The call of the running command: as text for records, and whether it prints JSON."""

    text: str
    prints_json: bool = False


_call: ContextVar[Call] = ContextVar("call")


def command(kind: type[S], /) -> Callable[[Callable[[S], Result]], Function]:
    """Turns a function of settings into one with a keyword for each flag, which is also a command of the shell.

    Only the given flags are passed on, so that ``model_fields_set`` of the settings lists the user's choices.

    Args:
        kind: the settings. Fields whose JSON-schema extra has ``argument: true`` may be positional.
    """
    in_python = {flag.name: flag for flag in all_flags(kind) if flag.name not in OF_THE_SHELL}
    signature = inspect.Signature(list(map(keyword, in_python.values())))
    several = {name for name, flag in in_python.items() if flag.annotation == tuple[str, ...]}

    def decorate(function: Callable[[S], Result]) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Result:
            unknown = [
                f"{name!r}: unknown keyword. {did_you_mean(name, in_python)}"
                for name in keywords.keys() - in_python.keys()
            ]
            raise_all(ConfigError, "wrong keywords", sorted(unknown))
            given = signature.bind(*arguments, **keywords).arguments
            given = {name: _plain(name, value, name in several) for name, value in given.items()}
            text = ", ".join(f"{key}={value!r}" for key, value in given.items())
            with _called(Call(f"{function.__name__}({text})")):
                return function(build(kind, given))

        def from_shell(context: typer.Context, json_output: bool, **values: Any) -> None:
            # typer calls the function of a group before its subcommand's.
            if context.invoked_subcommand is not None:
                return
            # Defaults are left out, because a recipe or a task may set what the user did not.
            sources = {name: context.get_parameter_source(name) for name in values}
            typed = {name: values[name] for name, source in sources.items() if source and source.name != "DEFAULT"}
            with _called(Call(shlex.join(["distill", *sys.argv[1:]]), json_output)):
                result = function(build(kind, typed))
            result.print(json_output)
            if result.exit_code:
                raise typer.Exit(result.exit_code)

        # Editors and help() show the real keywords instead of *arguments and **keywords.
        call.__signature__ = signature  # type: ignore[attr-defined]
        arguments = "".join(f"    {name}: {flag.help}\n" for name, flag in in_python.items())
        call.__doc__ = "\n\nArgs:\n".join(filter(None, [inspect.getdoc(function), arguments]))
        call.shell_form = _of_shell(from_shell, kind, function)  # type: ignore[attr-defined]
        return call

    return decorate


def _plain(name: str, value: Any, is_several: bool) -> Any:
    """Returns arrays and Series as tuples, because these have no truth value and pydantic refuses them.

    A single text is a tuple of one if a flag takes several.
    """
    if hasattr(value, "columns"):
        raise ConfigError(f"{flag_name(name)}: is a table. Give one of its columns.")
    if is_several and isinstance(value, str):
        return (value,)
    return tuple(listed(value)) if is_sequence(value) and not isinstance(value, list | tuple) else value


def shell_form(function: Function) -> Callable[..., None]:
    """Returns what typer makes a command of: it has a flag for each field, prints the result and sets the exit code."""
    return cast("Callable[..., None]", function.shell_form)  # type: ignore[attr-defined]


def called() -> str:
    """Returns the call of the running command, in the shell or in Python, for records."""
    return _call.get().text


def prints_json() -> bool:
    """Returns whether the running command was called in the shell with ``--json``."""
    return _call.get().prints_json


def reports_errors(function: Callable[..., None]) -> Callable[..., None]:
    """Turns every exception into one message and an exit code. docs/cluster.md lists the codes."""

    @functools.wraps(function)
    def run(*args: Any, **values: Any) -> None:
        try:
            with handling_signals():
                function(*args, **values)
        except DistillError as error:
            console.error(str(error))
            raise typer.Exit(error.exit_code) from error
        except (typer.Exit, BrokenPipeError):  # regular ends: an exit code, or a reader such as `head` that has left
            raise
        except UnicodeEncodeError as error:  # from a file name on the disk, because flags were checked before
            problem = string_problem(str(error.object))
            if problem is None:
                raise
            console.error(f"a name or a text {problem}")
            raise typer.Exit(2) from error
        except Exception as error:
            reason = limit_reached(error)
            if reason is None and not passes(error):
                raise
            console.error(reason or f"{error}. Fix this and repeat the command: finished work is kept")
            raise typer.Exit(PassingError.exit_code if passes(error) else 2) from error
        except (KeyboardInterrupt, Stopped) as error:
            is_stopped = isinstance(error, Stopped)
            console.note(f"{'stopped' if is_stopped else 'interrupted'}. {GO_ON}")
            # The shells' codes for SIGTERM and SIGINT (128 + signal number), so that schedulers see a stop and no
            # failure.
            raise typer.Exit(143 if is_stopped else 130) from error

    return run


def needs_teacher_libraries() -> None:
    """Raises MissingDependencyError if the libraries of the teacher stage are missing. See `needs_libraries`."""
    needs_libraries("the teacher stage", "teacher", "accelerate", "datasets", "sentencex", "transformers")


def needs_libraries(what: str, extra: str, *names: str) -> None:
    """Raises MissingDependencyError, which names the extra to install, unless these of its libraries are there.

    Args:
        what: needs them, for the message.
        extra: of the package, that brings them.
        names: of the modules.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"{what} needs {', '.join(missing)}: pip install 'distill-offline[{extra}]'")


def _of_shell(run: Callable[..., None], kind: type[Settings], function: Callable[[Any], Result]) -> Callable[..., None]:
    """Returns a command for typer, which takes the flags from its signature, with a log in ``--log-file``."""

    @functools.wraps(function)
    def logged(*args: Any, log_file: Path | None = None, **values: Any) -> None:
        problem = flag_problem("log_file", log_file)
        if problem is not None:
            console.error(f"--log-file: {problem}")
            raise typer.Exit(2)
        with ExitStack() as stack:
            try:
                stack.enter_context(log.written_to(log_file))
            except OSError as error:
                console.error(f"--log-file {log_file}: cannot be written: {error.strerror}. Choose another file.")
                raise typer.Exit(2) from error
            reports_errors(run)(*args, **values)

    form = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", form, annotation=typer.Context), *map(option, all_flags(kind))]
    parameters += [inspect.Parameter(name, form, default=d, annotation=a) for name, (d, a) in SHELL_FLAGS.items()]
    logged.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    logged.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return logged


@contextmanager
def _called(call: Call) -> Iterator[None]:
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
