"""A whole dump, from reading rows to checked files, against the teacher's bare forward pass over the same batches.

``python -m tests.benchmarks.dump``: MiniLM-L6's shape with random weights, generated sentences, on the CPU.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import yaml

from distill.apps.bench.timing import interleaved
from pipeline import console
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import tokenize
from teacher.config import DumpSettings
from teacher.finetune.common import save_teacher
from teacher.kinds import dump
from teacher.models.batches import CPU_TOKENS_PER_BATCH, collate, token_budget_batches
from teacher.models.classifier import load_teacher, new_classifier
from teacher.models.config import Precision
from teacher.models.loaded import inference_mode, keep_head_in_float32
from teacher.tiny import create_tiny_bert

LENGTH, WORDS, ROWS_PER_SHARD = 128, 5000, 4096
MANIFEST = {
    "name": "generated",
    "type": "classification",
    "columns": {"sentence1": "text", "label": "label"},
    "labels": ["a", "b"],
    "metrics": ["accuracy"],
    "splits": {"train": None},
}


def alternatives(folder: Path, rows: int, precision: Precision) -> dict[str, Callable[[], object]]:
    """The batches of every shard run through the teacher, and the whole dump."""
    task, texts = _write_task(folder, rows)
    config = DumpSettings.from_flags(
        manifest=folder / "generated.yaml",
        data=folder,
        model_name_or_path=str(folder / "teacher"),
        precision=precision,
        rows_per_shard=ROWS_PER_SHARD,
        store=folder / "store",
    )
    teacher = load_teacher(task, str(folder / "teacher"), None, (), LENGTH)
    keep_head_in_float32(teacher.model)
    batches = []
    for start in range(0, rows, ROWS_PER_SHARD):
        inputs = tokenize(teacher.tokenizer, texts[start : start + ROWS_PER_SHARD], None, LENGTH)
        packed = token_budget_batches([len(row.ids) for row in inputs], CPU_TOKENS_PER_BATCH)
        batches += [collate(teacher, [inputs[row] for row in batch]) for batch in packed]

    def bare() -> None:
        with inference_mode(torch.device("cpu"), precision):
            for batch in batches:
                teacher.model(**batch)

    numbers = iter(range(rows))

    def whole() -> None:
        dump(config.model_copy(update={"name": f"set-{next(numbers)}"}), "benchmark")

    return {"bare forward": bare, "whole dump": whole}


def _write_task(folder: Path, rows: int) -> tuple[Task, list[str]]:
    """A task of different sentences, 17 words in the mean, and a teacher for it."""
    texts = list(_sentences(rows))
    lines = [json.dumps({"text": text, "label": number % 2}) + "\n" for number, text in enumerate(texts)]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "generated.yaml").write_text(yaml.safe_dump(MANIFEST))
    task = load_task(manifest=folder / "generated.yaml")
    create_tiny_bert(folder / "encoder", texts, hidden_size=384, num_layers=6)
    teacher = new_classifier(task, make_target(task), str(folder / "encoder"), None, LENGTH)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")
    return task, texts


def _sentences(count: int) -> Iterator[str]:
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
        seconds = interleaved(alternatives(Path(folder), flags.rows, flags.precision), flags.rounds)
    share = seconds["bare forward"] / seconds["whole dump"]
    rows = [[name, value, flags.rows / value] for name, value in seconds.items()]
    title = f"{flags.rows:,} rows, {flags.precision}: the forward pass is {share:.1%} of the dump"
    console.print_table(["", "seconds", "rows a second"], rows, title=title)


if __name__ == "__main__":
    main()
