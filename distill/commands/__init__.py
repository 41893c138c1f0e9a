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
        module: the module of this package with the function.
        help: the first line of its docstring, so that ``--help`` imports no command.
    """

    module: str
    help: str


COMMANDS = {
    "Teachers": {
        "finetune-teacher": Entry(
            "teachers", "Fine-tune a BERT as the teacher of a task, or as a masked language model on a corpus."
        ),
        "augment": Entry(
            "teachers", "Make variants of a task's rows for a teacher to label. `teacher-dump --augment` does both."
        ),
        "teacher-dump": Entry(
            "teachers", "Run a teacher over a task or a corpus and write its outputs as a logit set."
        ),
        "check": Entry(
            "teachers",
            "Run a set's teacher again on a sample of rows. Exit code 1 if its outputs differ from the stored ones.",
        ),
    },
    "Logit sets": {
        "import": Entry("sets", "Make a logit set from a file of predictions of an LLM or any other teacher."),
        "extend": Entry(
            "sets", "Add what a cascade collected to a logit set, so that the next student learns from it."
        ),
        "verify": Entry("sets", "Check every file and row of a set against its record."),
        "card": Entry("sets", "Print the card of a set, or write it again."),
        "diff": Entry("sets", "Compare two sets of one task. Exit code 1 if rows, texts, gold or logits differ."),
        "index": Entry(
            "sql", "Index the logit sets of a store in DuckDB. `distill sql` does that automatically after changes."
        ),
        "sql": Entry("sql", "Query the logit sets of a store, read-only."),
        "budget": Entry(
            "sets",
            "Measure the size and loss of each codec on a sample of a set, a corpus or a task's rows.",
        ),
        "recode": Entry(
            "sets",
            "Write a set of masked words, or the stored layers of a set, in another codec without the teacher.",
        ),
        "push": Entry(
            "sets",
            "Copy a verified set to a folder, an object store or the hub. Existing files are skipped.",
        ),
        "pull": Entry("sets", "Download a pushed set, verify it, and add it to the store."),
        "join": Entry("sets", "Join your own texts with the logits of a set that was pushed without text."),
    },
    "Students": {
        "pretrain-student": Entry(
            "students",
            "Pretrain a student on stored predictions of masked words or on sentence vectors.",
        ),
        "filters": Entry(
            "students", "Learn task-specific filters of a teacher's stored layers for train-student --filters (TED)."
        ),
        "train-student": Entry("students", "Train a student from a logit set."),
        "sweep": Entry("students", "Train a student for every combination of values and seeds, and compare them."),
        "evaluate": Entry("students", "Score a run against gold labels or masked tokens, and against its teacher."),
        "describe": Entry("students", "Describe a student: architecture, parameters, bytes and multiply-adds."),
        "masked-words": Entry(
            "students",
            "Compare which words matter to students and to their teacher, by rows with each word masked.",
        ),
        "reproduce": Entry(
            "students",
            "Run the recorded query of a run again. Exit code 1 if it selects other rows or logits today.",
        ),
    },
    "Answers": {
        "predict": Entry(
            "predictions", "Predict labels or scores for sentences, for a file, or for rows as they arrive."
        ),
        "certify": Entry(
            "predictions",
            "Find the margin above which a student agrees with its teacher. Exit code 1 if there is none.",
        ),
        "cascade": Entry(
            "predictions",
            "Let a cheap student answer what it is sure of, and a larger student, a teacher or a server the rest.",
        ),
        "serve": Entry(
            "applications",
            "Serve students over HTTP: the API of text-embeddings-inference, the hub's API, and a web page.",
        ),
        "export": Entry(
            "predictions",
            "Write a student for the engine, as ONNX or HTML, or with smaller tables, and measure its accuracy.",
        ),
        "bench": Entry(
            "applications",
            "Measure the throughput of a student on this machine, compared with BERT and other models.",
        ),
    },
    "All together": {
        "quickstart": Entry(
            "applications",
            "Make a student from one file of texts and labels, and compare it with a baseline.",
        ),
        "demo": Entry(
            "applications", "Run the whole pipeline on two small generated tasks, offline, in a few minutes."
        ),
        "results": Entry(
            "applications",
            "Fine-tune, dump and train on several tasks, fit baselines, and write tables to RESULTS.md.",
        ),
        "report": Entry(
            "applications", "Write an HTML report with pictures of a logit set, a run, a sweep or a cascade."
        ),
    },
    "Data": {
        "tasks": Entry("manifests", "List the tasks that are available by name."),
        "corpora": Entry("manifests", "List the corpora that are available by name."),
    },
}
SUBCOMMANDS = {
    "tasks show": Entry("manifests", "Check and print the manifest of a task."),
    "corpora show": Entry("manifests", "Check and print the manifest of a corpus."),
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
    """Returns the typer command of a function or of a group."""
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
