"""A tiny task of labelled words with a random teacher, and its set."""

from pathlib import Path

import torch

from pipeline.logit_set.word_reader import WordSet, open_words
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.config import DumpTask
from teacher.dump.task import dump_task
from teacher.finetune.common import save_teacher
from teacher.inference.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.entities import write_entities

TRAIN_ROWS, VALIDATION_ROWS = 60, 30


def write_random_teacher(folder: Path) -> Path:
    """Writes rows, manifest, encoder and a classifier of words with a random head into a folder; returns the latter."""
    create_tiny_bert(folder / "bert", write_entities(folder, TRAIN_ROWS, VALIDATION_ROWS), hidden_size=32, num_layers=1)
    task = load_task(manifest=folder / "entities.yaml")
    torch.manual_seed(1)
    teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
    torch.nn.init.normal_(teacher.model.classifier.weight)
    save_teacher(teacher.model, teacher.name, teacher.revision, folder / "teacher")
    return folder / "teacher"


def dump_entities(folder: Path, **changes: object) -> WordSet:
    """The verified set of such a teacher, whose files must lie in the folder."""
    flags = {"manifest": folder / "entities.yaml", "data": folder, "model_name_or_path": str(folder / "teacher")}
    small = {"store": folder / "store", "max_seq_length": 32, "rows_per_shard": 25}
    config = DumpTask.from_flags(**flags | small | changes)
    record = dump_task(config, "distill teacher-dump")
    assert record is not None
    return open_words(config.store / record.name)
