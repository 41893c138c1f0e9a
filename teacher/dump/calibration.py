"""How long a teacher takes here: its own shape with one layer and with two, random weights, timed on this machine."""

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from pipeline.devices import to_device
from teacher.models.batches import token_budget_batches
from teacher.models.loaded import inference_mode

BATCHES, ROUNDS = 8, 3


def seconds_of(shape: Any, make: Callable[[Any], Callable[[], object]]) -> float:
    """Seconds that a run takes with all layers: what it takes with one, and the difference to two for each further one.

    Args:
        shape: the model's transformers config.
        make: builds a model of a config and gives the run with it; the fastest of a few counts.
    """
    runs = [make(_with_layers(shape, number)) for number in (1, 2)]
    best = [float("inf")] * len(runs)
    for _ in range(1 + ROUNDS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    further = int(shape.num_hidden_layers) - 1
    return best[0] + further * max(0.0, best[1] - best[0])


def _with_layers(shape: Any, number: int) -> Any:
    shallow = copy.deepcopy(shape)
    shallow.num_hidden_layers = number
    return shallow


def classifier_seconds(shape: Any, lengths: list[int], max_tokens: int, device: torch.device, precision: str) -> float:
    """Seconds for classifying rows of such lengths; of their batches only a few are tried.

    Args:
        shape: the model's transformers config.
        lengths: tokens per row.
        max_tokens: most padded tokens per batch.
        device: where it will run.
        precision: its arithmetic.
    """
    batches = token_budget_batches(lengths, max_tokens)
    places: list[int] = np.unique(np.linspace(0, len(batches) - 1, min(BATCHES, len(batches))).astype(int)).tolist()
    inputs = [_inputs([lengths[row] for row in batches[place]], device) for place in places]
    padded = [len(batch) * lengths[batch[0]] for batch in batches]

    def make(shallow: Any) -> Callable[[], object]:
        model = AutoModelForSequenceClassification.from_config(shallow).eval().to(device)

        def run() -> object:
            with inference_mode(device, precision):
                return torch.cat([model(**batch).logits for batch in inputs]).cpu()  # waits for a GPU

        return run

    return seconds_of(shape, make) * sum(padded) / sum(padded[place] for place in places)


def _inputs(lengths: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    attention_BL = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    inputs = {"input_ids": torch.ones_like(attention_BL, dtype=torch.int64), "attention_mask": attention_BL.long()}
    return {name: to_device(values, device) for name, values in inputs.items()}
