"""How what came of a try is judged: against an undisturbed run, file by file."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.torture.visit import Outcome

COLUMNS = ("lost", "twice", "left", "hung", "message")
LEFT_OUT = re.compile(  # times, a checksum of them, and which of two jobs has begun a set
    rb'\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\+00:00)?|"record_sha256": "[0-9a-f]{64}"|--shard-index \d'
)
ERROR = re.compile(r"^error: ", re.MULTILINE)
DATABASES = ("*.db", "*.sqlite", "*.duckdb")
Files = dict[str, bytes]


def files(folder: Path, measured: Collection[str] = ()) -> Files:
    """Every file below a folder; times in those that are text are left out, and of databases all but their names.

    Args:
        folder: the folder.
        measured: patterns of the files whose content is left out as well.
    """
    paths = [path for path in folder.rglob("*") if path.is_file()]
    empty = {path for path in paths if any(path.match(pattern) for pattern in (*DATABASES, *measured))}
    return {str(path.relative_to(folder)): b"" if path in empty else _content(path) for path in sorted(paths)}


def problems(first: Outcome, again: Outcome, codes: Collection[int], found: Files, reference: Files) -> list[str]:
    """What is wrong after a try and its repetition, in the words of `COLUMNS`.

    Args:
        first: what came of the disturbed command.
        again: what came of the repeated one.
        codes: how the disturbed one may end besides with 0.
        found: the files after both.
        reference: those of an undisturbed run.
    """
    extra = found.keys() - reference.keys()
    is_left = {name: any(part.startswith((".", "tmp")) for part in Path(name).parts) for name in extra}
    wrong = {
        "lost": any(found.get(name) != content for name, content in reference.items()),
        "twice": not all(is_left.values()),
        "left": any(is_left.values()),
        "hung": first.code is None or again.code is None,
        "message": not (_is_clean(first, {0, *codes}) and _is_clean(again, {0})),
    }
    return [name for name in COLUMNS if wrong[name]]


def difference(found: Mapping[str, bytes], reference: Mapping[str, bytes]) -> str:
    """Which files are not as they should be."""
    names = sorted(found.keys() ^ reference.keys())
    changed = [name for name in found.keys() & reference.keys() if found[name] != reference[name]]
    return f"more or fewer: {names}, other: {changed}"


def _is_clean(outcome: Outcome, codes: Collection[int]) -> bool:
    """Whether a command ended as it may, and a refusal with one message and no traceback."""
    if outcome.code is None:
        return True
    is_one_message = len(ERROR.findall(outcome.stderr)) == 1 or outcome.code not in (2, 75)
    return outcome.code in codes and is_one_message and "Traceback" not in outcome.stderr


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return LEFT_OUT.sub(b"", content) if path.suffix in {".json", ".md", ".html"} else content
