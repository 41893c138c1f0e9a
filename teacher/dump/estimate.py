"""``teacher-dump --plan``: estimates rows, shards, bytes, time and memory before any model is loaded.

Time is extrapolated from models of the teacher's shape with one layer and with two, with random weights, on this
machine.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import AutoModelForSequenceClassification

from pipeline.arrays import Ints
from pipeline.devices import to_device
from pipeline.sets.record_parts import WindowsRecord
from pipeline.sets.signals import LayerSignal
from pipeline.sources import Source
from pipeline.text.windows import check_stride, window_lengths
from teacher.dump.rows import Amount
from teacher.models.batches import token_budget_batches
from teacher.models.loaded import inference_mode

TOKENS_ALONE = 3  # [CLS], a vocabulary entry, [SEP]
BYTES_PER_VECTOR_NUMBER = 1.7  # measured for MiniLM's 30,522 tokens
ACTIVATION_COPIES = 16
LIBRARIES_BYTES = 850e6
BATCHES, ROUNDS = 8, 3
CHARACTERS_PER_TOKEN = 4.3  # measured on English text with BERT's vocabulary
SAMPLED_ROWS = 8192


@dataclass(frozen=True)
class Plan:
    """The estimates for a dump. ``seconds`` and ``memory_bytes`` are None if the teacher's config cannot be read.

    ``rows`` are counted by split, or for a corpus by kind. ``layer_bytes`` are the bytes per row and for all rows, by
    signal. ``init_bytes`` are those of the stored weights of layers.
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
        """Returns the estimates by name for JSON, without empty ones."""
        return {
            name: value for name, value in asdict(self).items() if value or name not in ("layer_bytes", "init_bytes")
        }


def sampled_lengths(source: Source, specials: int, max_seq_length: int) -> Ints:
    """Returns the approximate tokens of rows that are spread evenly over all splits [at most SAMPLED_ROWS]."""
    characters = np.sum(sampled_characters(source), axis=0)
    tokens: Ints = np.minimum(characters // CHARACTERS_PER_TOKEN + specials, max_seq_length).astype(np.int64)
    return tokens


def sampled_characters(source: Source) -> tuple[Ints, Ints]:
    """Returns the numbers of characters of these rows, for their first and second sentences."""
    texts = [table.select(["sentence1", "sentence2"]) for table in source.splits.values()]
    rows = pa.concat_tables(texts)
    sample = rows.take(np.unique(np.linspace(0, rows.num_rows - 1, SAMPLED_ROWS).astype(np.int64)))
    first, second = (pc.fill_null(pc.utf8_length(text), 0).to_numpy() for text in sample.columns)
    return first, second


def layer_bytes(
    signals: Sequence[LayerSignal], source: Source, length_R: Ints, num_variants: int
) -> dict[str, tuple[int, int]]:
    """Returns the approximate bytes of each signal per row and for all its rows, by its title."""
    own = sum(source.own(split).num_rows for split in source.splits)
    every = sum(table.num_rows for table in source.splits.values()) + num_variants
    sizes = {}
    for signal in signals:
        a_row = len(signal.layers) * signal.num_bytes(length_R) / max(1, len(length_R))
        sizes[str(signal)] = (round(a_row), round(a_row * (own if signal.of == "originals" else every)))
    return sizes


def estimated_tokens(
    source: Source, asked: Amount, is_pair: bool, max_seq_length: int, windows: WindowsRecord | None
) -> tuple[int, Ints]:
    """Returns the approximate number of the teacher's tokens for all rows, and the lengths of its inputs for some."""
    num_rows, specials = sum(asked.rows.values()), 3 if is_pair else 2
    tokens = asked.characters / CHARACTERS_PER_TOKEN + specials * num_rows
    if windows is None:
        length_R = sampled_lengths(source, specials, max_seq_length)
        return int(min(tokens, num_rows * max_seq_length)), length_R
    check_stride(is_pair, specials, windows.size, windows.stride)
    both_R = [(characters // CHARACTERS_PER_TOKEN).astype(np.int64) for characters in sampled_characters(source)]
    length_R = window_lengths(np.maximum(*both_R), np.minimum(*both_R), specials, windows.size, windows.stride)
    return int(tokens * length_R.sum() / (np.add(*both_R) + specials).sum()), length_R


def token_vectors_bytes(shape: Any) -> int:
    """Returns the approximate size of the token vectors of a teacher with this transformers config."""
    return int(shape.vocab_size * shape.hidden_size * BYTES_PER_VECTOR_NUMBER)


def memory_bytes(shape: Any, max_tokens: int) -> int:
    """Returns the approximate memory of a teacher with this transformers config, with batches of so many tokens."""
    hidden, inner = shape.hidden_size, getattr(shape, "intermediate_size", 4 * shape.hidden_size)
    # Four attention projections and two feed-forward matrices per layer. Biases and LayerNorms are negligible.
    parameters = shape.num_hidden_layers * (4 * hidden * hidden + 2 * hidden * inner) + shape.vocab_size * hidden
    return int(parameters * 4 + max_tokens * hidden * ACTIVATION_COPIES * 4 + LIBRARIES_BYTES)


def seconds_of(shape: Any, make: Callable[[Any], Callable[[], object]]) -> float:
    """Estimates the seconds of a run with all layers from runs with one layer and with two.

    ``make`` builds a model from a config and returns a run. The fastest of a few runs counts.
    """
    runs = []
    for number in (1, 2):
        shallow = copy.deepcopy(shape)
        shallow.num_hidden_layers = number
        runs.append(make(shallow))
    best = [float("inf")] * len(runs)
    # The first round warms up caches and kernels. The minimum over rounds excludes it and disturbances by other
    # programs.
    for _ in range(1 + ROUNDS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    further = int(shape.num_hidden_layers) - 1
    return best[0] + further * max(0.0, best[1] - best[0])


def classifier_seconds(shape: Any, lengths: list[int], max_tokens: int, device: torch.device, precision: str) -> float:
    """Returns the seconds for classifying rows of these lengths, measured on a few batches."""
    batches = token_budget_batches(lengths, max_tokens)
    places: list[int] = np.unique(np.linspace(0, len(batches) - 1, min(BATCHES, len(batches))).astype(int)).tolist()
    inputs = [_inputs([lengths[row] for row in batches[place]], device) for place in places]
    padded = [len(batch) * lengths[batch[0]] for batch in batches]

    def make(shallow: Any) -> Callable[[], object]:
        model = AutoModelForSequenceClassification.from_config(shallow).eval().to(device)

        def run() -> object:
            with inference_mode(device, precision):
                return torch.cat([model(**batch).logits for batch in inputs]).cpu()  # the copy waits for the GPU

        return run

    return seconds_of(shape, make) * sum(padded) / sum(padded[place] for place in places)


def _inputs(lengths: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    attention_BL = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    inputs = {"input_ids": torch.ones_like(attention_BL, dtype=torch.int64), "attention_mask": attention_BL.long()}
    return {name: to_device(values, device) for name, values in inputs.items()}
