"""Folders of the hub's names, with the layout of the real repositories and a few random rows."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import yaml

from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.models.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert

WORDS = ("nobody", "a", "man", "woman", "eats", "is", "eating", "sleeps", "soup", "outside")
QUEUES = ("billing", "technical", "other")
GLUE = {
    "mnli": (("premise", "hypothesis"), {"train": 120, "validation_matched": 60, "validation_mismatched": 60}, 3),
    "mrpc": (("sentence1", "sentence2"), {"train": 120, "validation": 60}, 2),
}


def write_hub(root: Path) -> None:
    """Writes GLUE's MNLI and MRPC, Wikipedia, BERT and an untrained teacher of MNLI below ``root``."""
    _write_glue(root / "nyu-mll" / "glue")
    _write_wikipedia(root / "wikimedia" / "wikipedia")
    bert = root / "bert-base-uncased"
    create_tiny_bert(bert, WORDS, hidden_size=32, num_layers=2)
    load_masked_lm(str(bert), None, 128, new_head=True).model.save_pretrained(bert)
    mnli = load_task("mnli")
    teacher = new_classifier(mnli, make_target(mnli), str(bert), None, 128)
    save_teacher(teacher.model, teacher.name, teacher.revision, root / "textattack" / "bert-base-uncased-MNLI")


def write_tickets(folder: Path, splits: dict[str, int]) -> None:
    """Writes the rows of a custom task. A longer file begins with the rows of a shorter one."""
    folder.mkdir()
    for split, count in splits.items():
        random = np.random.default_rng(len(split))
        rows = [(_sentences(random, 1)[0], QUEUES[random.integers(len(QUEUES))]) for _ in range(count)]
        table = pa.table({"text": [text for text, _ in rows], "queue": [queue for _, queue in rows]})
        pc.write_csv(table, folder / f"{split}.csv")


def write_answers(tickets: Path, path: Path) -> None:
    """Writes answers as from an LLM: probabilities by name, mostly in favour of gold, and none for one ticket."""
    answers = {}
    for split in ("train", "validation"):
        for row in pc.read_csv(tickets / f"{split}.csv").to_pylist():
            answers[row["text"]] = {queue: 0.6 if queue == row["queue"] else 0.2 for queue in QUEUES}
    rows = [{"text": text, "probabilities": answer} for text, answer in answers.items()]
    rows[-1]["probabilities"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _sentences(random: np.random.Generator, count: int) -> list[str]:
    return [" ".join(random.choice(WORDS, 5)) for _ in range(count)]


def _write_glue(root: Path) -> None:
    configs: list[dict[str, object]] = []
    for config, (columns, splits, num_labels) in GLUE.items():
        random = np.random.default_rng(len(config))
        (root / config).mkdir(parents=True)
        for split, count in splits.items():
            labels = pa.array(random.integers(num_labels, size=count))
            table = {column: _sentences(random, count) for column in columns} | {"label": labels}
            pq.write_table(pa.table(table), root / config / f"{split}-00000-of-00001.parquet")
        files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
        configs.append({"config_name": config, "data_files": files})
    _write_card(root, configs)


def _write_wikipedia(root: Path) -> None:
    name = "20231101.en"
    (root / name).mkdir(parents=True)
    texts = pa.table({"text": [" ".join(_sentences(np.random.default_rng(k), 4)) for k in range(40)]})
    pq.write_table(texts, root / name / "train-00000-of-00001.parquet")
    _write_card(root, [{"config_name": name, "data_files": f"{name}/train-*"}])


def _write_card(root: Path, configs: list[dict[str, object]]) -> None:
    (root / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
