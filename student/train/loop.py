"""The training loop: epochs with a dev score, the best kept, early stopping, resumable."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import console
from pipeline.arrays import Ints
from pipeline.device import to_device
from pipeline.errors import ConfigError
from pipeline.tasks.target import Target
from pipeline.training.steps import (
    last_is_best,
    linear_decay,
    load_checkpoint,
    quality,
    save_checkpoint,
    seed_step,
    set_learning_rate,
    shuffled_batches,
)
from student.config import TrainConfig
from student.data import Examples, gold_tensor
from student.evaluate import score_student
from student.model.heads import HEADS
from student.model.model import Student
from student.model.products import IS_COMPILED
from student.train.losses import distillation_loss, score_loss
from student.train.optimizer import RowAdam


def train_epochs(
    config: TrainConfig, student: Student, splits: dict[str, Examples], checkpoint: Path, save_best: Callable[[], None]
) -> list[dict[str, Any]]:
    """Trains until the last epoch or until patience is lost, going on from the checkpoint if there is one.

    Args:
        config: the settings.
        student: is trained in place.
        splits: ``train``, and dev splits; the first metric on the first of them decides which epoch is best.
        checkpoint: is written after every epoch.
        save_best: is called whenever an epoch is the best so far.

    Returns:
        Per epoch its number, mean loss, and metrics by dev split.

    Raises:
        ConfigError: if training diverges.
    """
    tables = (table.weight for table in student.encoder.tables())
    pad_id = student.config.pad_id
    if student.device.type == "cpu" and not IS_COMPILED:
        console.note("the compiled kernels were not built at installation: every step takes several times longer")
    optimizer = RowAdam(tables, student.head.parameters(), lr=config.learning_rate, padding_idx=pad_id)
    progress = load_checkpoint(checkpoint, student, optimizer)
    history: list[dict[str, Any]] = progress["history"] if progress else []
    dev = {split: examples for split, examples in splits.items() if split != "train"}
    if last_is_best(history):
        save_best()  # the last try may have been stopped before it could
    while len(history) < config.num_train_epochs and not _out_of_patience(config, history):
        epoch = len(history)
        loss = _train_epoch(config, student, optimizer, splits["train"], epoch)
        metrics = {split: score_student(student, examples) for split, examples in dev.items()}
        entry = {"epoch": epoch + 1, "loss": loss, "metrics": metrics}
        shown = [f"{split} {k} {v:.4f}" for split, values in metrics.items() for k, v in values.items()]
        console.note(f"epoch {epoch + 1}: loss {loss:.4f}, {', '.join(shown)}")
        history.append(entry)
        save_checkpoint(checkpoint, student, optimizer, {"history": history})
        if last_is_best(history):
            save_best()
    return history


def epoch_batches(config: TrainConfig, lengths_N: Ints, epoch: int) -> list[list[int]]:
    """The row numbers of each step, of like length where the head can be trained on such batches."""
    sorted_by_N = lengths_N if HEADS[config.head].sorted_batches else np.zeros_like(lengths_N)
    return shuffled_batches(sorted_by_N.tolist(), config.per_device_train_batch_size, config.seed, epoch)


def _train_epoch(config: TrainConfig, student: Student, optimizer: RowAdam, examples: Examples, epoch: int) -> float:
    """One pass over the training rows; returns the mean loss."""
    batches = epoch_batches(config, examples.lengths, epoch)
    total_steps = len(batches) * config.num_train_epochs
    target, device = student.config.target, student.device
    gold_N, teacher_NC = gold_tensor(target, examples), torch.from_numpy(examples.teacher_NC)
    weight_N = torch.from_numpy(examples.weight_N)
    total = torch.zeros((), device=device)
    student.train()
    with console.progress(len(batches), f"epoch {epoch + 1}/{config.num_train_epochs}") as bar:
        for number, rows in enumerate(batches):
            step = epoch * len(batches) + number
            seed_step(config.seed, step + 1)
            rate = linear_decay(step, total_steps, config.warmup_steps)
            set_learning_rate(optimizer, config.learning_rate * rate)
            ids_T, starts_S = student.drop_tokens(*(to_device(part, device) for part in examples.batch(rows)))
            used = optimizer.use(ids_T) if optimizer.by_rows else None
            logits_BC = student.logits(ids_T, starts_S, used)
            teacher_BC, gold_B, weight_B = (to_device(part[rows], device) for part in (teacher_NC, gold_N, weight_N))
            loss = _loss(config, target, logits_BC, teacher_BC, gold_B, weight_B)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.clip_gradients(config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach() * len(rows)
            bar.advance()
    optimizer.catch_up()
    mean = float(total) / len(examples)
    if not math.isfinite(mean):
        raise ConfigError(f"the loss of epoch {epoch + 1} is {mean}: training diverged; lower --learning-rate")
    return mean


def _loss(
    config: TrainConfig,
    target: Target,
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    weight_B: torch.Tensor,
) -> torch.Tensor:
    if target.kind == "score":
        return score_loss(logits_BC, teacher_BC, gold_B, config.alpha, weight_B)
    soft = (config.temperature, config.soft_loss)
    return distillation_loss(logits_BC, teacher_BC, gold_B, config.alpha, *soft, weight_B)


def _out_of_patience(config: TrainConfig, history: list[dict[str, Any]]) -> bool:
    if not history:
        return False
    best = max(history, key=quality)
    return len(history) - int(best["epoch"]) >= config.early_stopping_patience
