"""A whole dump, from reading rows to checked files, against the teacher's bare forward pass over the same batches.

``python -m tests.benchmarks.dump``: MiniLM-L6's shape with random weights, generated sentences.
"""

import argparse
import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoConfig, BertConfig, BertModel

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.devices import to_device
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import tokenize
from student.model.student import default_device
from teacher.dumps import dump
from teacher.models.batches import collate, token_budget_batches, tokens_per_batch
from teacher.models.classifier import load_teacher
from teacher.models.loaded import inference_mode, keep_head_in_float32
from teacher.models.model_settings import Precision
from teacher.settings import DumpSettings
from teacher.tiny import create_tiny_bert
from tests.helpers.new_teachers import prefer_the_first, save_new_teacher

LENGTH, WORDS, ROWS_PER_SHARD, PADDED_ROWS = 128, 5000, 4096, 32
NAMES = ("bare forward", "whole dump", "rows padded as they come")
MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
MANIFEST = {
    "name": "generated",
    "type": "classification",
    "columns": {"sentence1": "text", "label": "label"},
    "labels": ["a", "b"],
    "metrics": ["accuracy"],
    "splits": {"train": None},
}


def alternatives(
    folder: Path, rows: int, precision: Precision, shape: BertConfig, device: torch.device
) -> dict[str, Callable[[], object]]:
    """The batches of every shard run through the teacher, the whole dump, and what a loop over a file would do.

    Args:
        folder: for the rows, the teacher and the sets.
        rows: their number.
        precision: of the arithmetic.
        shape: of the teacher, whose weights are random.
        device: the one that a dump takes on this machine.
    """
    task, texts = _write_task(folder, rows, shape)
    fixed: dict[str, Any] = {
        "manifest": folder / "generated.yaml",
        "data": folder,
        "model_name_or_path": str(folder / "teacher"),
        "precision": precision,
        "rows_per_shard": ROWS_PER_SHARD,
        "store": folder / "store",
    }
    teacher = load_teacher(task, str(folder / "teacher"), None, (), LENGTH)
    keep_head_in_float32(teacher.model)
    teacher.model.to(device)
    packed, plain = [], []
    for start in range(0, rows, ROWS_PER_SHARD):
        inputs = tokenize(teacher.tokenizer, texts[start : start + ROWS_PER_SHARD], None, LENGTH)
        budgets = token_budget_batches([len(row.ids) for row in inputs], tokens_per_batch(device))
        packed += [collate(teacher, [inputs[row] for row in batch]) for batch in budgets]
        plain += [collate(teacher, inputs[at : at + PADDED_ROWS]) for at in range(0, len(inputs), PADDED_ROWS)]

    def forward(batches: list[dict[str, torch.Tensor]]) -> object:
        with inference_mode(device, precision):
            logits = [teacher.model(**{key: to_device(x, device) for key, x in batch.items()}) for batch in batches]
            return torch.cat([output.logits for output in logits]).cpu()  # the copy waits for the GPU

    numbers = iter(range(rows))

    def whole() -> None:
        dump(DumpSettings.from_flags(name=f"set-{next(numbers)}", **fixed), "benchmark")

    return dict(zip(NAMES, (partial(forward, packed), whole, partial(forward, plain)), strict=True))


def _write_task(folder: Path, rows: int, shape: BertConfig) -> tuple[Task, list[str]]:
    """A task of different sentences, 17 words in the mean, and a teacher for it.

    Nine of ten rows have the first label, which the teacher prefers: a dump refuses labels that gold disproves.
    """
    texts = list(sentences(rows))
    lines = [json.dumps({"text": text, "label": int(number % 10 == 0)}) + "\n" for number, text in enumerate(texts)]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "generated.yaml").write_text(yaml.safe_dump(MANIFEST))
    task = load_task(manifest=folder / "generated.yaml")
    create_tiny_bert(folder / "encoder", texts)
    written = AutoConfig.from_pretrained(folder / "encoder")
    config = copy.deepcopy(shape)
    config.vocab_size, config.max_position_embeddings = written.vocab_size, 512
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder / "encoder")
    save_new_teacher(folder / "generated.yaml", folder / "encoder", folder / "teacher", 0, prefer_the_first)
    return task, texts


def sentences(count: int) -> Iterator[str]:
    """Sentences of words that are one token each."""
    random = np.random.default_rng(0)
    for length in np.clip(random.lognormal(np.log(15), 0.6, count).astype(int), 2, LENGTH):
        yield " ".join(f"w{word}" for word in random.integers(WORDS, size=length))


def main() -> None:
    """Prints how much of the dump's time is the forward pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = alternatives(Path(folder), flags.rows, flags.precision, MINILM, default_device())
        seconds = interleaved(runs, flags.rounds)
    share = seconds["bare forward"] / seconds["whole dump"]
    rows = [[name, value, flags.rows / value] for name, value in seconds.items()]
    title = f"{flags.rows:,} rows, {flags.precision}: the forward pass is {share:.1%} of the dump"
    console.print_table(["", "seconds", "rows a second"], rows, title=title)


if __name__ == "__main__":
    main()
