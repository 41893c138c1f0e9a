"""Reads prose out of Markdown and out of Python."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.prose.measure import Prose

STRING = r'[a-zA-Z]{0,2}"(?:[^"\\\n]|\\.)*"'
# Comments on neighbouring lines, docstrings, strings that follow each other. A parser would take
# three times as long.
LITERAL = re.compile(
    rf'(?P<comment>\#[^\n]*(?:\n[ ]*\#[^\n]*)*) | """(?P<docstring>.*?)""" | (?P<strings>{STRING}(?:\s+{STRING})*)',
    re.DOTALL | re.VERBOSE,
)


def markdown(text: str) -> Prose:
    """A page without its code, markup and addresses. Inline code counts as one word."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1 *$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^<>\n]+>|!\[[^\]]*\]\([^)]*\)|^#+ .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "CODE", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    rows = re.findall(r"^\s*\|(.*)\|\s*$", text, re.MULTILINE)
    cells = [cell.strip() for row in rows if not re.fullmatch(r"[\s:|-]*", row) for cell in row.split("|")]
    text = re.sub(r"^\s*\|.*\|\s*$", "\n", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )", text)
    return Prose(
        tuple(_plain(re.sub(r"^\s*(?:[-*+]|\d+\.) |[*_>]", "", block) for block in blocks)), tuple(_plain(cells))
    )


def python(source: str) -> Prose:
    """A module's docstrings, messages, help texts and comments."""
    return Prose(tuple(_plain(_literals(source))))


def _literals(source: str) -> Iterator[str]:
    """The texts of a module. Values in an f-string count as one word each."""
    for found in LITERAL.finditer(source):
        if found["strings"]:
            parts = re.findall(STRING, found["strings"])
            yield re.sub(r"\{[^{}]*\}", "VALUE", "".join(part[part.index('"') + 1 : -1] for part in parts))
        elif found["docstring"]:
            yield from re.split(r"\n\s*\n|\n(?=\s*\w+: )", found["docstring"])
        else:
            yield re.sub(r"^\s*#+ ?", "", found["comment"] or "", flags=re.MULTILINE)


def _plain(texts: Iterable[str]) -> Iterator[str]:
    """Texts of at least three words on one line, which leaves out names and patterns. SQL and HTML are no prose."""
    for text in texts:
        text = re.sub(r"``.*?``|`[^`]*`", "CODE", " ".join(text.split()))
        if len(re.findall(r"\b[A-Za-z]{2,}\b", text)) > 2 and not re.search(r"<\w+|\b[Ss](?:ELECT|elect) |[{}]", text):
            yield text


def folder(root: Path) -> Prose:
    """All modules of a folder as one text."""
    texts = [python(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))]
    return Prose(tuple(paragraph for text in texts for paragraph in text.paragraphs))
