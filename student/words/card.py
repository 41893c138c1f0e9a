"""The README.md of the folder of a student of words."""

import re
from importlib.resources import files

from pipeline.console import size
from pipeline.sets.markdown import code
from pipeline.training.run_record import RunRecord
from student.model.encoders import ENCODERS
from student.model.heads import HEADS
from student.model.model import num_bytes, num_parameters
from student.words.model import Tagger


def card_text(student: Tagger, record: RunRecord) -> str:
    """Fills the template from a student and its record, which has a result."""
    config = student.config
    lines = [
        f"| {split} | {code(name)} | {value:.4f} | {parts['teacher'][name]:.4f} |"
        for split, parts in record["result"]["evaluation"].items()
        for name, value in parts["gold"].items()
    ]
    values = {
        "task": code(config.task),
        "architecture": f"{ENCODERS[config.embedding].words}, {HEADS[config.head].words} for each token",
        "num_parameters": f"{num_parameters(student):,}",
        "bytes": size(num_bytes(student)),
        "names": ", ".join(f"`{code(name)}`" for name in config.target.names),
        "scores": "\n".join(["| split | metric | student | teacher |", "|---|---|---|---|", *lines]) if lines else "",
    }
    template = files("student.words").joinpath("card.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
