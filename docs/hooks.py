"""Hooks of MkDocs: the reference of commands and of Python is generated, and links that leave ``docs/`` become text."""

import inspect
import posixpath
import re
from collections.abc import Iterator
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files

import distill
from distill.commands import COMMANDS, app

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for name, lines in {"commands.md": commands(), "python.md": python()}.items():
        files.append(File.generated(config, name, content="\n".join(lines) + "\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to files outside ``docs/`` into their text: only the repository has these files."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return f"`{link[1]}`" if outside and "`" not in link[1] else link[1] if outside else link[0]

    return LINK.sub(shown, markdown)


def commands() -> Iterator[str]:
    """Every command with its arguments and flags, as ``--help`` prints them."""
    yield "# Commands\n\n`distill COMMAND --help` prints the same text. [Exit codes](reliability.md#exit-codes).\n"
    group: Any = typer.main.get_command(app)
    for panel, entries in COMMANDS.items():
        yield f"## {panel}\n"
        for name in entries:
            command = group.commands[name]
            context = click.Context(command, info_name=name)
            yield f"### distill {name}\n\n{inspect.cleandoc(command.help or '')}\n\n| | |\n|---|---|"
            records = [parameter.get_help_record(context) for parameter in command.params]
            yield from (f"| `{flag}` | {cell(text)} |" for flag, text in filter(None, records))
            yield ""


def cell(text: str) -> str:
    """A help text as the cell of a table."""
    return re.sub(r"([|<*_])", r"\\\1", " ".join(text.split()))


def python() -> Iterator[str]:
    """The public names of ``distill`` with their docstrings."""
    yield "# Python\n\nEvery [command](commands.md) is a function of `distill` with its flags as keywords."
    functions = {name for entries in COMMANDS.values() for name in entries}
    for name in distill.__all__:
        value = getattr(distill, name)
        if name.replace("_", "-") not in functions:
            yield f"\n## distill.{name}\n\n{described(value)}"
            members = vars(value).items() if inspect.isclass(value) else ()
            for member, thing in members:
                if not member.startswith("_") and inspect.getdoc(thing) and callable(getattr(value, member)):
                    yield f"\n### {name}.{member}{signature(getattr(value, member))}\n\n{described(thing)}"


def signature(value: Any) -> str:
    """A function's parameters, without types: the docstring has them."""
    try:
        return f"({', '.join(inspect.signature(value).parameters)})"
    except ValueError:
        return ""


def described(value: Any) -> str:
    """A docstring whose sections are lists."""
    text = re.sub(r"``?([^`]+)``?", r"`\1`", inspect.getdoc(value) or "")
    text = re.sub(r"^(Args|Returns|Raises|Attributes):$", r"\n**\1**\n", text, flags=re.MULTILINE)
    return re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
