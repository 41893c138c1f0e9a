"""The command ``distill diff``: in what two sets differ."""

from dataclasses import asdict

import typer

from distill.commands.options import takes
from pipeline import console
from pipeline.errors import short
from pipeline.query.config import DiffConfig

HEADS = {"both": "in both", "only_a": "only A", "only_b": "only B", "other_text": "other text"}


@takes(DiffConfig)
def diff(config: DiffConfig) -> None:
    """Compare two sets of one task; exit code 0 if they say the same of the same rows, 1 if not."""
    from pipeline.query.diff import diff as compare

    difference = compare(config)
    if config.json_output:
        console.print_json(asdict(difference) | {"same": difference.is_empty})
    else:
        if difference.settings:
            rows = [[name, *map(short, values)] for name, values in difference.settings.items()]
            console.print_table(["setting", "A", "B"], rows)
        for title, table in (
            ("rows", difference.splits),
            ("by class", difference.classes),
            ("calibration", difference.calibration),
        ):
            if table:
                columns = [HEADS.get(name, name.replace("_", " ")) for name in table[0]]
                console.print_table(columns, [list(row.values()) for row in table], title=title)
        console.note("the sets say the same" if difference.is_empty else "the sets differ")
    if not difference.is_empty:
        raise typer.Exit(1)
