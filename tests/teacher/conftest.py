"""A task and a teacher whose answers are known (one word per sentence, one label per word)."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModel, AutoTokenizer, BertForSequenceClassification

from pipeline.tasks.task import Task, load_task
from teacher.tiny import create_tiny_bert
from tests.helpers.word_tasks import WORDS, MakeTask, MakeTeacher


@pytest.fixture
def word_task(tmp_path: Path) -> MakeTask:
    """Writes ``words.yaml`` and ``data/``: ``rows`` sentences of one word each, whose number is the label."""

    def make(labels: Sequence[str], rows: int = 60, **manifest: object) -> Task:
        values: dict[str, object] = {
            "name": "words",
            "type": "classification",
            "labels": list(labels),
            "metrics": ["accuracy"],
        }
        values |= {"columns": {"sentence1": "text", "label": "label"}, "splits": {"train": None, "validation": None}}
        (tmp_path / "words.yaml").write_text(yaml.safe_dump(values | manifest, sort_keys=False))
        (tmp_path / "data").mkdir(exist_ok=True)
        for split in ("train", "validation"):
            numbers = [k % len(labels) for k in range(rows)]
            lines = [json.dumps({"text": WORDS[number], "label": number}) + "\n" for number in numbers]
            (tmp_path / "data" / f"{split}.jsonl").write_text("".join(lines))
        return load_task(manifest=tmp_path / "words.yaml")

    return make


@pytest.fixture
def word_teacher(tmp_path: Path) -> MakeTeacher:
    """Writes a teacher that gives 10 to the right label of each word and 0 to the others.

    ``outputs[k]`` is the number of the label that its k-th output stands for; ``id2label`` is what it calls them.
    """

    def make(outputs: Sequence[int], id2label: Sequence[str] | None = None, name: str = "teacher") -> Path:
        create_tiny_bert(tmp_path / "encoder", WORDS, hidden_size=32, num_layers=1)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "encoder")
        names = list(id2label or [f"LABEL_{k}" for k in range(len(outputs))])
        encoder = AutoModel.from_pretrained(tmp_path / "encoder").eval()
        encoder.config.num_labels = len(outputs)
        encoder.config.id2label = dict(enumerate(names))
        encoder.config.label2id = {label: number for number, label in enumerate(names)}
        model = BertForSequenceClassification(encoder.config)
        model.bert = encoder
        with torch.no_grad():
            inputs = tokenizer(WORDS[: len(outputs)], return_tensors="pt")
            features_CH = encoder(**inputs).pooler_output
            wanted_CC = 10 * torch.eye(len(outputs))[:, list(outputs)]
            model.classifier.weight.copy_((torch.linalg.pinv(features_CH) @ wanted_CC).T)
            model.classifier.bias.zero_()
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return make
