"""``teacher-dump --plan``: rows, shards, bytes, time and memory, before any model is loaded."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState

from pipeline import console
from pipeline.errors import DistillError
from pipeline.sources import Source
from pipeline.tasks import Task
from teacher.config import DumpConfig
from teacher.dump import most_variants
from teacher.inference import default_tokens_per_batch
from teacher.models import load_config
from teacher.precision import DTYPES
from teacher.staging import all_shards, amount

CHARACTERS_PER_TOKEN = 4.3  # English text under BERT's vocabulary
# Share of the speed of a big matrix product that a transformer's forward pass reaches.
EFFICIENCY = {"fp32": 0.6, "bf16": 0.28, "fp16": 0.28}
PADDING = 1.2
ACTIVATION_COPIES = 16
LIBRARIES_BYTES = 850e6


@dataclass(frozen=True)
class Plan:
    """What a dump will take; ``seconds`` and ``memory_bytes`` are None if the teacher's config cannot be read.

    ``rows`` are counted by split, or for a corpus by kind.
    """

    rows: dict[str, int]
    shards: int
    tokens: int
    disk_bytes: int
    seconds: float | None
    memory_bytes: int | None


def estimate(config: DumpConfig, task: Task, source: Source) -> Plan:
    """Estimates a dump from the rows' lengths, the teacher's config and a quick measurement of this machine."""
    variants = most_variants(config, task)
    asked = amount(source, variants)
    num_rows = sum(asked.rows.values())
    specials = 3 if task.is_pair else 2
    tokens = int(min(asked.characters / CHARACTERS_PER_TOKEN + specials * num_rows, num_rows * config.max_seq_length))
    try:
        seconds, memory = cost(config, *config.teacher_for(task), tokens)
    except DistillError as error:
        console.warn(f"no estimate of time and memory: {error}")
        seconds, memory = None, None
    return Plan(
        rows=asked.rows,
        shards=len(all_shards(source, config.rows_per_shard, 1 + variants)),
        tokens=tokens,
        disk_bytes=asked.expected_bytes,
        seconds=seconds,
        memory_bytes=memory,
    )


def cost(config: DumpConfig, name: str, revision: str | None, tokens: int, decoded: int = 0) -> tuple[float, int]:
    """Seconds and bytes of memory that a teacher takes, from its config and the speed of a matrix product here.

    Args:
        config: the command's settings.
        name: hub id or folder of the teacher.
        revision: its hub revision.
        tokens: to be read.
        decoded: positions at which the vocabulary is predicted.

    Raises:
        DataError: if the config cannot be read.
    """
    model = load_config(name, revision)
    device = PartialState().device
    encoder, embeddings = _encoder_parameters(model), model.vocab_size * model.hidden_size
    speed = _matmul_flops_per_s(device, DTYPES[config.precision], model.hidden_size) * EFFICIENCY[config.precision]
    batch = config.max_tokens_per_batch or default_tokens_per_batch(device)
    activations = batch * model.hidden_size * ACTIVATION_COPIES * 4
    seconds = 2 * (encoder * tokens * PADDING + embeddings * decoded) / speed
    return seconds, int((encoder + embeddings) * 4 + activations + LIBRARIES_BYTES)


def _encoder_parameters(model: Any) -> int:
    hidden, inner = model.hidden_size, getattr(model, "intermediate_size", 4 * model.hidden_size)
    return int(model.num_hidden_layers * (4 * hidden * hidden + 2 * hidden * inner))


def _matmul_flops_per_s(device: torch.device, dtype: torch.dtype, hidden: int) -> float:
    a, b = torch.ones(2048, hidden, dtype=dtype, device=device), torch.ones(hidden, 2048, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        (a @ b).sum().item()
        best = min(best, time.perf_counter() - start)
    return 2 * 2048 * 2048 * hidden / best
