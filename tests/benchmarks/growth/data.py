"""A task of any number of rows: random sentences of twelve words, two labels, and a tiny BERT for a teacher."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert

WORDS = tuple(f"{first}{second}" for first in "bdfgklmnprst" for second in map(str, range(170)))
LENGTH, DEV_ROWS, ROWS_AT_ONCE = 12, 1000, 100_000
MANIFEST = """
name: growth
type: classification
columns: {sentence1: sentence1, label: label}
labels: ["no", "yes"]
metrics: [accuracy]
splits: {train: , validation: }
"""


def write_task(folder: Path, num_rows: int) -> None:
    """Writes ``growth.yaml``, ``data/`` with so many training rows, and ``teacher``."""
    (folder / "data").mkdir(parents=True)
    manifest = folder / "growth.yaml"
    manifest.write_text(MANIFEST)
    for split, count in (("validation", DEV_ROWS), ("train", num_rows)):
        with pq.ParquetWriter(folder / "data" / f"{split}.parquet", next(_tables(1)).schema) as writer:
            for table in _tables(count):
                writer.write_table(table)
    torch.manual_seed(0)
    create_tiny_bert(folder / "bert", WORDS, hidden_size=32, num_layers=1)
    task = load_task(manifest=manifest)
    teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")


def _tables(num_rows: int) -> Iterator[pa.Table]:
    words = pa.array(WORDS)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, num_rows - start)
        random = np.random.default_rng([num_rows, start])
        numbers = random.integers(len(WORDS), size=count * LENGTH)
        offsets = np.arange(0, count * LENGTH + 1, LENGTH, dtype=np.int32)
        sentences = pc.binary_join(pa.ListArray.from_arrays(offsets, words.take(pa.array(numbers))), " ")
        yield pa.table({"sentence1": sentences, "label": random.integers(2, size=count)})
