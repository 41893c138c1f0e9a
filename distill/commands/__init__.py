"""The table of all commands, for the shell, which imports only the one it runs, and for Python."""

import ast
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distill.commands.help import Command
from pipeline import console

# The commands of each panel of `--help`, by the module of their functions, which `--help` does not import.
_PANELS = {
    "Teachers": {"teachers": "finetune-teacher augment teacher-dump check"},
    "Logit sets": {"sets": "import verify diff recode push pull join", "sql": "sql"},
    "Students": {"students": "pretrain-student filters train-student sweep evaluate describe masked-words"},
    "Answers": {"predictions": "predict certify cascade export", "applications": "serve"},
    "All together": {"applications": "quickstart report"},
    "Data": {"manifests": "tasks"},
}
COMMANDS = {
    panel: {name: module for module, names in modules.items() for name in names.split()}
    for panel, modules in _PANELS.items()
}
SUBCOMMANDS = {"tasks show": "manifests"}
ALL = {name: module for commands in COMMANDS.values() for name, module in commands.items()} | SUBCOMMANDS
# Commands of earlier versions, and how their work is spelled now.
GONE = {
    "extend": "import --extend SET",
    "card": "describe SET",
    "index": 'sql "from sets"',
    "budget": "recode SET --plan",
    "reproduce": "verify RUN",
    "bench": "describe RUN",
    "demo": "quickstart --demo",
    "results": "sweep --experiment glue",
    "corpora": "tasks",
}
OTHER_NAMES = {"teacher-dump": "dump_teacher", "import": "import_answers"}  # `import` is a keyword of Python
NAMES = {name: OTHER_NAMES.get(name, name.replace("-", "_").replace(" ", "_")) for name in ALL}  # in Python
FUNCTIONS = {function: name for name, function in NAMES.items()}
ALIASES = {function.replace("_", "-"): name for name, function in OTHER_NAMES.items()}  # accepted, not listed


def load(function: str) -> Callable[..., Any]:
    """Imports the function of a command by its name in Python."""
    module = importlib.import_module(f"{__name__}.{ALL[FUNCTIONS[function]]}")
    loaded: Callable[..., Any] = getattr(module, function)
    return loaded


def gone(name: str) -> str | None:
    """Returns where to find a command of earlier versions, by its name in the shell or in Python."""
    name = name.replace("_", "-")
    return f"{name}: no longer a command. Use `distill {GONE[name]}`." if name in GONE.keys() - ALL.keys() else None


def help_of(name: str) -> str:
    """Returns the first line of a command's docstring. It is read from the source, because imports take a second."""
    return _docstrings(ALL[name])[NAMES[name]].partition("\n")[0]


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    parsed = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in parsed.body if isinstance(node, ast.FunctionDef)}


class Loading(Mapping[str, Any]):
    """The commands of the shell by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _made(ALIASES.get(name, name))

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in ALL if name not in SUBCOMMANDS)

    def __len__(self) -> int:
        return len(ALL) - len(SUBCOMMANDS)


@functools.cache
def _made(name: str) -> Any:
    """Returns the typer command of a function or of a group."""
    from distill.commands.command import shell_form

    # Each command is its own Typer app: one app for all would need to import all of them for `--help`.
    only = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    run = shell_form(load(NAMES[name]))
    # Groups such as `tasks` both run by themselves and have a subcommand, which Typer supports only by a callback.
    if f"{name} show" in SUBCOMMANDS:
        only.callback(invoke_without_command=True, help=help_of(name))(run)
        only.command("show", cls=Command)(shell_form(load(NAMES[f"{name} show"])))
    else:
        only.command(name, cls=Command)(run)
    return typer.main.get_command(only)


class Distill(TyperGroup):
    """The whole command line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": Loading()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes all commands by panel, each with its complete first sentence, without importing them."""
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, help_of(name)) for name in names])

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Runs a command line, whatever characters the streams can encode."""
        console.accept_all_characters()
        return super().main(*arguments, **settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command of the arguments. For one of earlier versions, prints the new spelling."""
        pointer = gone(args[0])
        if pointer is not None and not ctx.resilient_parsing:
            console.error(pointer)
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)


app: typer.Typer = typer.Typer(
    name="distill",
    cls=Distill,
    help="Distil BERT offline: write a teacher's logits once, train tiny students from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"distill {version('distill-offline')}")
        raise typer.Exit


@app.callback()
def distill(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Distil BERT offline."""
    from pipeline.interrupts import end_with_launcher

    end_with_launcher()
