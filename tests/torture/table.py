"""What tries came to, kept in a file of JSON lines, and the table that the documentation shows of it."""

import json
from collections import Counter
from pathlib import Path

from tests.torture.judge import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- made by make torture -->\n", "<!-- end -->"


def keep(path: Path, command: str, fault: str, tries: int, wrong: Counter[str]) -> None:
    """Adds what a fault on a command came to."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"command": command, "fault": fault, "tries": tries, **wrong}) + "\n")


def table(path: Path) -> str:
    """Everything in the file, summed: a row for each command and each fault, the columns of which are the problems."""
    rows: dict[str, Counter[str]] = {}
    commands: dict[str, Counter[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        numbers = Counter({name: found.get(name, 0) for name in ("tries", *COLUMNS)})
        commands.setdefault(found["command"], Counter())[found["fault"]] += numbers["tries"]
        rows.setdefault(found["fault"], Counter()).update(numbers)
    faults = list(rows)
    sums = [
        "| fault | tries | lost | twice | left behind | hung | wrong message |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(_line(name, [row[key] for key in ("tries", *COLUMNS)]) for name, row in rows.items()),
    ]
    tries = [
        f"| tries | {' | '.join(faults)} |",
        "|---|" + "--:|" * len(faults),
        *(_line(name, [row[fault] for fault in faults]) for name, row in commands.items()),
    ]
    return "\n".join([*sums, "", *tries]) + "\n"


def _line(name: str, numbers: list[int]) -> str:
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def write_table(path: Path) -> None:
    """Puts the table where the documentation has it."""
    page = PAGE.read_text(encoding="utf-8")
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + table(path) + page[stop:], encoding="utf-8")
