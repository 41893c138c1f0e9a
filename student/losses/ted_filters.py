"""TED's filters: the part of a teacher's layers that matters for a task, learnt from stored states.

Filters follow Liang et al. (2023). This is the first stage of TED, from stored states of the first token, without a
teacher in memory. The published stage trains with the teacher's dropout, but stored states are those of a teacher
without dropout.

Shapes: T tokens, N rows, B rows of a batch, H the teacher's width, D the filters', C logits.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.errors import ConfigError, DataError, IntegrityError
from pipeline.record_file import Record, read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import open_layers
from pipeline.sets.open import find_set
from pipeline.settings import deciding
from pipeline.tasks.metrics import score_logits
from pipeline.training.batches import EpochBatches
from pipeline.training.checkpoint import check_tensors, state_of, write_tensors
from pipeline.training.loop import TrainOptimizer, TrainTask, fit, seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import Metrics
from pipeline.training.schedule import Schedule
from student.data import Examples, gold_tensor, load_dev, load_examples
from student.losses.layers import LayerTargets, first_signal, named_layers, stored_layers
from student.losses.logit_losses import task_loss
from student.pretrain_settings import FiltersSettings

FILTERS_FILE, FILTERS_RECORD = "filters.safetensors", "filters.json"
BETAS, EPS = (0.9, 0.98), 1e-6  # of the published code
DROPOUT = 0.1
STANDARD_ROWS = 2000  # rows whose states determine the scale of a filter


class Filters(nn.Module):
    """An affine map per layer, from states_TH to the numbers that the task needs, [T, D]."""

    def __init__(self, layers: Sequence[int], width: int, dim: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({str(layer): nn.Linear(width, dim) for layer in layers})

    def forward(self, layer: int, states_TH: Tensor) -> Tensor:
        """Returns the filtered states of a layer, float32 [T, D]."""
        return self.maps[str(layer)](states_TH)  # type: ignore[no-any-return]

    def map_of(self, layer: int) -> nn.Linear:
        """Returns the map of a layer."""
        found = self.maps[str(layer)]
        assert isinstance(found, nn.Linear)
        return found

    @torch.no_grad()
    def standardise(self, layer: int, states_TH: Tensor) -> None:
        """Shifts and scales a layer's filter so that these states come out with mean 0 and variance 1 over all numbers.

        A weight of the distance then means the same for every task. The published weights, from 5 to 7,500, belong to
        the published filters.
        """
        found = self.map_of(layer)
        filtered_TD = found(states_TH)
        mean_D = filtered_TD.mean(dim=0)
        scale = 1 / (filtered_TD - mean_D).square().mean().sqrt().clamp(min=1e-6)
        found.weight.mul_(scale)
        found.bias.sub_(mean_D).mul_(scale)


def read_filters(folder: Path, fingerprint: str) -> Filters:
    """Returns the filters in a folder.

    Args:
        folder: the output of ``distill filters``.
        fingerprint: the fingerprint of the set from which they must have been learnt.

    Raises:
        ConfigError: if they belong to another set, or are not finished.
        IntegrityError: if the folder is missing or damaged.
    """
    if not (folder / FILTERS_RECORD).is_file():
        raise IntegrityError(f"{folder}: no filters: it has no {FILTERS_RECORD}")
    record = read_work_record(folder / FILTERS_RECORD)
    if record["state"] != "finished":
        raise ConfigError(f"{folder}: not finished. Repeat its command first: {record['command']}")
    settings: dict[str, Any] = record["settings"]
    if settings["logit_set_fingerprint"] != fingerprint:
        raise ConfigError(
            f"{folder}: these are filters of another set's layers. Learn those of this set with `distill filters`"
        )
    try:
        filters = Filters(settings["layers"], settings["width"], settings["dim"])
        check_tensors(folder / FILTERS_FILE)
        filters.load_state_dict(load_file(folder / FILTERS_FILE))
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder / FILTERS_FILE}: not the filters of its record: {error}") from error
    return filters.requires_grad_(requires_grad=False)


class FilterTask(TrainTask[list[int]]):
    """Filters, each with a head for the task.

    Args:
        settings: the settings.
        logit_set: the set, which has the task's target.
        splits: the rows.
        targets: the first token's states of each split.
        filters: the filters, which are trained in place.
    """

    def __init__(
        self,
        settings: FiltersSettings,
        logit_set: ExampleSet,
        splits: dict[str, Examples],
        targets: dict[str, LayerTargets],
        filters: Filters,
    ) -> None:
        self._alpha, self._record = settings.alpha, logit_set.record
        self._splits, self._targets, self._filters = splits, targets, filters
        self._layers = targets["train"].store.signal.layers
        dim, num_logits, drop = settings.dim, self._record.target.num_logits, partial(nn.Dropout, DROPOUT)
        self._heads = nn.ModuleDict(
            {
                str(layer): nn.Sequential(drop(), nn.Linear(dim, dim), nn.Tanh(), drop(), nn.Linear(dim, num_logits))
                for layer in self._layers
            }
        )
        self.model = nn.ModuleDict({"filters": filters, "heads": self._heads})
        self._known = np.flatnonzero(targets["train"].is_known_N)
        sizes = (settings.per_device_train_batch_size, settings.seed)
        self.batches = EpochBatches(np.zeros_like(self._known), *sizes)
        self._gold_N = gold_tensor(self._record.target, splits["train"])
        self._teacher_NC = torch.from_numpy(splits["train"].teacher_NC)

    def loss(self, batch: list[int]) -> torch.Tensor:
        rows = self._known[batch]
        gold_B, teacher_BC = self._gold_N[rows], self._teacher_NC[rows]
        losses = [
            task_loss(self._record.target, self._logits("train", layer, rows), teacher_BC, gold_B, self._alpha)
            for layer in self._layers
        ]
        return torch.stack(losses).mean()

    def evaluate(self) -> Metrics:
        """Returns the task's metrics of the last layer's head on each dev split."""
        found: Metrics = {}
        for split in (name for name in self._targets if name != "train"):
            rows, examples = np.flatnonzero(self._targets[split].is_known_N), self._splits[split]
            with torch.inference_mode():
                logits_NC = self._logits(split, self._layers[-1], rows).numpy()
            gold = (examples.label_N[rows], examples.score_N[rows])
            found[split] = score_logits(self._record.metrics, self._record.target, logits_NC, *gold)
        return found

    def save(self, folder: Path) -> None:
        """Writes the filters, scaled by the states of the training rows."""
        rows = self._known[:: max(1, len(self._known) // STANDARD_ROWS)]
        for layer in self._layers:
            self._filters.standardise(layer, self._targets["train"].first(layer, rows))
        write_tensors(folder / FILTERS_FILE, state_of(self._filters))

    def _logits(self, split: str, layer: int, rows: np.ndarray) -> torch.Tensor:
        filtered_BD = self._filters(layer, self._targets[split].first(layer, rows))
        logits_BC: torch.Tensor = self._heads[str(layer)](filtered_BD)
        return logits_BC


def train_filters(settings: FiltersSettings, command: str) -> Record:
    """Learns the filters that settings describe, or resumes them. Returns the content of ``filters.json``.

    Raises:
        ConfigError: if the set has no states, or lacks one of the layers.
        DataError: if there is no such set.
        FingerprintMismatchError: if the folder holds filters with other settings.
    """
    logit_set = ExampleSet.open(find_set(settings.set, settings.store), settings.allow_unverified)
    signal = first_signal(logit_set.record)
    layers = named_layers(settings.layers) or stored_layers(logit_set.record).get(signal, ())
    if not layers or "train" not in logit_set.splits:
        advice = f"no states. Repeat its command with --keep cls: {logit_set.record.command}"
        raise ConfigError(f"{logit_set.root}: has {'no training rows' if layers else advice}")
    splits = {s: load_dev(logit_set, s) if s != "train" else load_examples(logit_set, s) for s in logit_set.splits}
    targets = {
        split: target
        for split, examples in splits.items()
        if (target := LayerTargets(open_layers(logit_set, signal, split, layers), examples)).is_known_N.any()
    }
    if "train" not in targets:
        raise DataError(f"{logit_set.root}: has no {signal} of the training rows")
    width = targets["train"].width
    folder = settings.output_dir or Path("filters") / logit_set.name
    of_set = {"layers": list(layers), "width": width, "logit_set_fingerprint": logit_set.record.fingerprint}
    run = Run(folder, deciding(settings) | of_set, command, record_name=FILTERS_RECORD)
    finished = run.start()
    if finished is not None:
        return finished
    seed_step(settings.seed, 0)
    filters = Filters(layers, width, settings.dim)
    task = FilterTask(settings, logit_set, splits, targets, filters)
    optimizer = TrainOptimizer(torch.optim.Adam(task.model.parameters(), settings.learning_rate, BETAS, EPS))
    schedule = Schedule.of_epochs(
        task.batches.steps_per_epoch, settings.num_train_epochs, settings.seed, save_best=False
    )
    return run.finish({"history": fit(run, task, optimizer, schedule)})
