"""The table of all commands, for the shell, which imports only the one it runs, and for Python."""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from distill.commands.help import Command, Commands


class Entry(NamedTuple):
    """A command's line in the table.

    Attributes:
        module: of this package, that has the function.
        help: the first line of its docstring, so that ``--help`` imports no command.
    """

    module: str
    help: str


COMMANDS = {
    "Teachers": {
        "finetune-teacher": Entry(
            "teachers", "Fine-tune a BERT for a task, to be its teacher, or as a masked language model on a corpus."
        ),
        "augment": Entry(
            "teachers", "Make variants of a task's rows, for a teacher to label; `teacher-dump --augment` does both."
        ),
        "teacher-dump": Entry("teachers", "Write what a teacher says about a task or a corpus, as a logit set."),
        "check": Entry(
            "teachers",
            "Ask a set's teacher again about a sample of its rows; exit code 0 if it says what is stored, 1 if not.",
        ),
    },
    "Logit sets": {
        "import": Entry("sets", "Make a logit set of what any teacher, an LLM or another, answered in a file."),
        "verify": Entry("sets", "Check a set's every file and row against what it says of itself."),
        "card": Entry("sets", "Print a set's card, or write it anew."),
        "diff": Entry(
            "sets", "Compare two sets of one task; exit code 0 if they say the same of the same rows, 1 if not."
        ),
        "index": Entry(
            "sql", "Index the logit sets of a store in DuckDB. `distill sql` does so by itself when something changed."
        ),
        "sql": Entry("sql", "Query the logit sets of a store, read-only."),
        "budget": Entry(
            "sets",
            "Measure what each codec would cost and lose, on a sample of a set, of a corpus or of a task's rows.",
        ),
        "recode": Entry(
            "sets",
            "Write a set of tokens, or the stored layers of a set of examples, in another codec; no teacher is needed.",
        ),
        "push": Entry(
            "sets",
            "Send a verified set to a folder, an object store or the hub; only what is not there yet travels.",
        ),
        "pull": Entry("sets", "Fetch a set from where it was pushed, verify it, and put it into the store."),
        "join": Entry("sets", "Put your own texts beside the logits of a set that was pushed without text."),
    },
    "Students": {
        "pretrain-student": Entry(
            "students",
            "Pretrain a student on stored predictions of masked words or on vectors of sentences, for train-student.",
        ),
        "filters": Entry(
            "students", "Learn what of a teacher's stored layers a task needs, for train-student --filters (TED)."
        ),
        "train-student": Entry("students", "Train a student from a logit set."),
        "sweep": Entry("students", "Train a student for every combination of values and seed, and compare them."),
        "evaluate": Entry("students", "Score a run against gold labels, or masked tokens, and against its teacher."),
        "describe": Entry(
            "students", "Tell what a student is made of: architecture, parameters, bytes, multiply-adds."
        ),
        "masked-words": Entry(
            "students",
            "Compare which words matter to students and to their teacher, by its answers to rows with each word "
            "masked.",
        ),
        "reproduce": Entry(
            "students",
            "Run a run's recorded query again: exit code 0 if it chooses the same rows and logits today, 1 if not.",
        ),
    },
    "Answers": {
        "predict": Entry("predictions", "Predict labels or scores of sentences, of a file, or of rows as they arrive."),
        "certify": Entry(
            "predictions",
            "Find how sure a student must be so that its answers are its teacher's: exit code 1 if it never is.",
        ),
        "serve": Entry(
            "applications", "Answer over HTTP: text-embeddings-inference's API, the hub's, and a page for people."
        ),
        "export": Entry(
            "predictions",
            "Write a student as a file for the engine, as ONNX or HTML, or with smaller tables, and measure the cost.",
        ),
        "bench": Entry(
            "applications",
            "Measure how many sentences a second a student reads on this machine, beside BERT and its likes.",
        ),
    },
    "All together": {
        "quickstart": Entry(
            "applications",
            "Make a student of one file of texts and labels, step by printed step, and compare it with baselines.",
        ),
        "demo": Entry("applications", "Run the whole product on two small generated tasks, offline, in a few minutes."),
        "results": Entry(
            "applications",
            "Fine-tune, dump and train task by task, beside baselines, and write the tables: RESULTS.md.",
        ),
        "report": Entry("applications", "Make an HTML page with pictures of a logit set, a run or a sweep."),
    },
    "Data": {
        "tasks": Entry("manifests", "List the tasks that need nothing but their name."),
        "corpora": Entry("manifests", "List the corpora that need nothing but their name."),
    },
}
SUBCOMMANDS = {
    "tasks show": Entry("manifests", "Print a task's manifest, checked."),
    "corpora show": Entry("manifests", "Print a corpus's manifest, checked."),
}
ALL = {name: entry for commands in COMMANDS.values() for name, entry in commands.items()} | SUBCOMMANDS
OTHER_NAMES = {"teacher-dump": "dump_teacher", "import": "import_answers"}  # `import` is a keyword of Python
FUNCTIONS = {OTHER_NAMES.get(name, name.replace("-", "_").replace(" ", "_")): name for name in ALL}
ALIASES = {function.replace("_", "-"): name for name, function in OTHER_NAMES.items()}  # accepted, not listed


def load(function: str) -> Callable[..., Any]:
    """Imports the function of a command by its name in Python."""
    module = importlib.import_module(f"{__name__}.{ALL[FUNCTIONS[function]].module}")
    loaded: Callable[..., Any] = getattr(module, function)
    return loaded


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
    """What typer makes of a command's function, or of a group's."""
    from distill.commands.command import shell_form

    functions = {command: function for function, command in FUNCTIONS.items()}
    # Each command is its own Typer app: one app for all would need to import all of them for `--help`.
    only = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    run = shell_form(load(functions[name]))
    # Groups such as `tasks` both run by themselves and have a subcommand, which Typer supports only by a callback.
    if f"{name} show" in SUBCOMMANDS:
        only.callback(invoke_without_command=True, help=ALL[name].help)(run)
        only.command("show", cls=Command)(shell_form(load(functions[f"{name} show"])))
    else:
        only.command(name, cls=Command)(run)
    return typer.main.get_command(only)


class Distill(Commands):
    """The whole command line."""

    panels = COMMANDS

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": Loading()})


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
    from distill.commands.parent import end_with_launcher

    end_with_launcher()
