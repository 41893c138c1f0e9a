"""``teacher-dump --plan``: rows, shards, bytes, time and memory, before any model is loaded."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pipeline import console
from pipeline.arrays import Ints
from pipeline.devices import processes
from pipeline.errors import DistillError
from pipeline.sources import Source
from pipeline.tasks.task import Task
from pipeline.text.windows import check_stride, window_lengths
from teacher.config import DumpTask
from teacher.dump.calibration import classifier_seconds
from teacher.dump.examples import most_variants, read_rows
from teacher.dump.init_layers import init_bytes
from teacher.dump.layer_sizes import CHARACTERS_PER_TOKEN, layer_bytes, sampled_characters, sampled_lengths
from teacher.dump.layers import wanted_layers
from teacher.dump.source_parts import Amount, all_shards, amount
from teacher.models.batches import tokens_per_batch
from teacher.models.classifier import outputs, warn_of_missing_head
from teacher.models.loaded import load_config, require_positions

TOKENS_ALONE = 3  # a vocabulary entry between [CLS] and [SEP]
BYTES_PER_VECTOR_NUMBER = 1.4  # as of the codec `hidden`
ACTIVATION_COPIES = 16
LIBRARIES_BYTES = 850e6


@dataclass(frozen=True)
class Plan:
    """What a dump will take; ``seconds`` and ``memory_bytes`` are None if the teacher's config cannot be read.

    ``rows`` are counted by split, or for a corpus by kind; ``layer_bytes`` are of a row and of all, by signal;
    ``init_bytes`` those of the weights that a set carries.
    """

    rows: dict[str, int]
    shards: int
    tokens: int
    disk_bytes: int
    seconds: float | None
    memory_bytes: int | None
    layer_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    init_bytes: int = 0

    def values(self) -> dict[str, Any]:
        """The estimate by name, as JSON has it; without what there is nothing of."""
        return {
            name: value for name, value in asdict(self).items() if value or name not in ("layer_bytes", "init_bytes")
        }


def estimate(config: DumpTask) -> Plan:
    """Estimates a dump from the rows' lengths and the teacher's config, whose shape is timed on this machine.

    Raises:
        ConfigError: if the labels that are stated are not the task's, or the teacher does not read such long inputs.
        TeacherError: if the teacher's outputs do not fit the task.
    """
    task, source, _ = read_rows(config)
    variants = most_variants(config.augmentation(), task)
    asked = amount(source, variants)
    tokens, length_R = _tokens(config, task, source, asked)
    row_tokens = tokens
    in_all = {split: count * source.own(split).num_rows for split, count in variants.items()}
    num_shards = len(all_shards(source, config.rows_per_shard, in_all))
    plan = Plan(asked.rows, num_shards, tokens, asked.expected_bytes, seconds=None, memory_bytes=None)
    try:
        name, revision = config.teacher_for(task)
        shape = load_config(name, revision)
    except DistillError as error:
        console.warn(f"no estimate of time and memory: {error}")
        return plan
    outputs(task, name, shape, config.teacher_label_names)
    warn_of_missing_head(task, name, shape)
    require_positions(name, shape, config.max_seq_length)
    if config.token_vectors:
        tokens += shape.vocab_size * TOKENS_ALONE
        plan = replace(plan, tokens=tokens, disk_bytes=plan.disk_bytes + token_vectors_bytes(shape))
    layers = layer_bytes(wanted_layers(config, name, shape), source, length_R, sum(in_all.values()))
    if layers:
        tokens += row_tokens  # one more pass
    weights = init_bytes(config, name, shape)
    disk_bytes = plan.disk_bytes + sum(size for _, size in layers.values()) + weights
    plan = replace(plan, tokens=tokens, disk_bytes=disk_bytes, layer_bytes=layers, init_bytes=weights)
    device = processes().device
    max_tokens = tokens_per_batch(device, config.max_tokens_per_batch)
    seconds = (
        classifier_seconds(shape, length_R.tolist(), max_tokens, device, config.precision) * tokens / length_R.sum()
    )
    return replace(plan, seconds=float(seconds), memory_bytes=memory_bytes(shape, max_tokens))


def _tokens(config: DumpTask, task: Task, source: Source, asked: Amount) -> tuple[int, Ints]:
    """About how many tokens the teacher is given of all rows, and the lengths of what it is given of some."""
    num_rows, specials, windows = sum(asked.rows.values()), 3 if task.is_pair else 2, config.windows
    tokens = asked.characters / CHARACTERS_PER_TOKEN + specials * num_rows
    if windows is None:
        length_R = sampled_lengths(source, specials, config.max_seq_length)
        return int(min(tokens, num_rows * config.max_seq_length)), length_R
    check_stride(task.is_pair, specials, windows.size, windows.stride)
    both_R = [(characters // CHARACTERS_PER_TOKEN).astype(np.int64) for characters in sampled_characters(source)]
    length_R = window_lengths(np.maximum(*both_R), np.minimum(*both_R), specials, windows.size, windows.stride)
    return int(tokens * length_R.sum() / (np.add(*both_R) + specials).sum()), length_R


def token_vectors_bytes(shape: Any) -> int:
    """About what the vectors of the vocabulary of a teacher of this shape (its transformers config) take on disk."""
    return int(shape.vocab_size * shape.hidden_size * BYTES_PER_VECTOR_NUMBER)


def memory_bytes(shape: Any, max_tokens: int) -> int:
    """About how much memory a teacher of this shape (its transformers config) takes with batches of so many tokens."""
    hidden, inner = shape.hidden_size, getattr(shape, "intermediate_size", 4 * shape.hidden_size)
    parameters = shape.num_hidden_layers * (4 * hidden * hidden + 2 * hidden * inner) + shape.vocab_size * hidden
    return int(parameters * 4 + max_tokens * hidden * ACTIVATION_COPIES * 4 + LIBRARIES_BYTES)
