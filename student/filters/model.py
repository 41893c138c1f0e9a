"""Filters of layers, and a folder that they are written to and read from.

Shapes: T tokens, B rows, H the teacher's width, D the filters', C logits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.errors import ConfigError, IntegrityError
from pipeline.training.checkpoint import check_tensors, state_of, write_tensors
from pipeline.training.run_record import read_run_record

FILTERS_FILE, FILTERS_RECORD = "filters.safetensors", "filters.json"
DROPOUT = 0.1


class Filters(nn.Module):
    """An affine map a layer, from states_TH to what of them the task needs, [T, D]."""

    def __init__(self, layers: Sequence[int], width: int, dim: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({str(layer): nn.Linear(width, dim) for layer in layers})

    def forward(self, layer: int, states_TH: Tensor) -> Tensor:
        """Returns the filtered states of a layer, float32 [T, D]."""
        return self.maps[str(layer)](states_TH)  # type: ignore[no-any-return]

    def map_of(self, layer: int) -> nn.Linear:
        """The map of a layer."""
        found = self.maps[str(layer)]
        assert isinstance(found, nn.Linear)
        return found

    @torch.no_grad()
    def standardise(self, layer: int, states_TH: Tensor) -> None:
        """Shifts and scales a layer's filter so that these states come out with mean 0 and variance 1 over all numbers.

        A weight of the distance to them then means the same for every task; the published weights, from 5 to 7,500,
        belong to the filters that they were found with.
        """
        found = self.map_of(layer)
        filtered_TD = found(states_TH)
        mean_D = filtered_TD.mean(dim=0)
        scale = 1 / (filtered_TD - mean_D).square().mean().sqrt().clamp(min=1e-6)
        found.weight.mul_(scale)
        found.bias.sub_(mean_D).mul_(scale)


def task_head(dim: int, num_logits: int) -> nn.Sequential:
    """What a filter is trained through: dropout, Linear, tanh, dropout, Linear. Maps [B, D] to logits_BC."""
    return nn.Sequential(
        nn.Dropout(DROPOUT), nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(DROPOUT), nn.Linear(dim, num_logits)
    )


def write_filters(folder: Path, filters: Filters) -> None:
    """Writes the filters' numbers, whole or not at all."""
    write_tensors(folder / FILTERS_FILE, state_of(filters))


def read_filters(folder: Path, fingerprint: str) -> Filters:
    """The filters in a folder.

    Args:
        folder: as ``distill filters`` has written it.
        fingerprint: of the set that they must have been learnt from.

    Raises:
        ConfigError: if they are of another set, or not finished.
        IntegrityError: if the folder is missing or damaged.
    """
    if not (folder / FILTERS_RECORD).is_file():
        raise IntegrityError(f"{folder}: no filters: it has no {FILTERS_RECORD}")
    record = read_run_record(folder / FILTERS_RECORD)
    if record["state"] != "finished":
        raise ConfigError(f"{folder}: not finished; repeat its command first: {record['command']}")
    settings: dict[str, Any] = record["settings"]
    if settings["logit_set_fingerprint"] != fingerprint:
        raise ConfigError(f"{folder}: filters of another set's layers; learn those of this one with `distill filters`")
    try:
        filters = Filters(settings["layers"], settings["width"], settings["dim"])
        check_tensors(folder / FILTERS_FILE)
        filters.load_state_dict(load_file(folder / FILTERS_FILE))
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder / FILTERS_FILE}: not the filters of its record: {error}") from error
    return filters.requires_grad_(requires_grad=False)
