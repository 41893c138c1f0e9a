"""Tasks of sentences of one word, and teachers whose answers are known."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.numpy import load_file
from transformers import AutoModel, AutoModelForSequenceClassification

from pipeline.tasks.task import Task

WORDS = ("apple", "bread", "candle", "door", "engine")
WEIGHTS = "model.safetensors"
MakeTask = Callable[..., Task]
MakeTeacher = Callable[..., Path]


def make_louder(folder: Path) -> None:
    """Makes the matrices of a tiny BERT larger, so that small differences between inputs show."""
    kind = AutoModelForSequenceClassification if "classifier.weight" in load_file(folder / WEIGHTS) else AutoModel
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 8 if weight.ndim == 2 else 1
    model.save_pretrained(folder)
