"""Tasks, corpus and teachers that the checks run on, made here: nothing is downloaded."""

from pathlib import Path

import torch

from teacher.finetune.common import save_teacher
from teacher.models.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert
from tests.helpers.entities import write_entities
from tests.helpers.new_teachers import prefer_the_first, save_new_teacher
from tests.helpers.toy_tasks import write_toy_tasks

TASKS = ("opinion", "roles", "entities")


def make_world(folder: Path, rows: int, hidden_size: int, num_layers: int) -> None:
    """Writes tasks of sentences, of pairs and of labelled words, a corpus, and an untrained teacher of each."""
    sentences = list(write_toy_tasks(folder, rows, rows // 2))
    sentences += write_entities(folder, rows, rows // 2)
    create_tiny_bert(folder / "bert", sentences, hidden_size=hidden_size, num_layers=num_layers)
    (folder / "corpus.txt").write_text("\n".join(sentence.capitalize() for sentence in sentences[:rows]) + "\n")
    for name in TASKS:
        # Most words have the first label, and a dump refuses labels in an order that gold disproves.
        change = prefer_the_first if name == "entities" else lambda head: None
        save_new_teacher(folder / f"{name}.yaml", folder / "bert", folder / "teachers" / name, seed=0, change=change)
    torch.manual_seed(0)
    lm = load_masked_lm(str(folder / "bert"), None, 32, new_head=True)
    save_teacher(lm.model, lm.name, None, folder / "teachers" / "mlm")
