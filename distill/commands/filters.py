"""``distill filters``."""

from distill.commands.history import print_history
from distill.commands.options import command_line, takes
from pipeline import console
from student.filters.config import FiltersConfig


@takes(FiltersConfig)
def filters(config: FiltersConfig) -> None:
    """Learn what of a teacher's stored layers a task needs, for train-student --filters (TED)."""
    from student.filters.train import train_filters

    record = train_filters(config, command_line())
    if config.json_output:
        console.print_json(record)
        return
    layers = ", ".join(map(str, record["settings"]["layers"]))
    print_history(record["result"]["history"], f"filters of layers {layers}, by the head of the last one")
