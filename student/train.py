"""Stage two: a student from stored logits, with no teacher in memory."""

import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder, remove_temporaries, write_text
from pipeline.logit_set.manifest import TOKENIZER_FILE
from pipeline.logit_set.reader import LogitSet, find_set, open_set
from pipeline.run_record import Record, finish_run, start_run
from pipeline.targets import Target
from pipeline.training import (
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
from student.data import Examples, gold_tensor, load_examples
from student.evaluate import RUN_RECORD, score_student
from student.losses import distillation_loss, score_loss
from student.model import Student, StudentConfig, default_device
from student.vocabulary import active_ids, renumber, restore, shrunk

CHECKPOINT = "checkpoint.safetensors"
DEFAULT_SIZES = {"hybrid": (20, 400), "cmow": (28, 0), "cbow": (0, 784)}
LIBRARIES = ("distill-offline", "torch", "duckdb", "pyarrow", "tokenizers")


def train(config: TrainConfig, command: str) -> Record:
    """Trains the student that ``config`` describes, or goes on with it.

    The run folder holds ``run.json`` (settings, query, hashes, metrics per epoch), the best epoch's weights by the
    first metric on the first dev split, and the tokenizer.

    Returns:
        The content of ``run.json``.

    Raises:
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    logit_set = open_set(_set_path(config), config.allow_unverified)
    student_config = student_config_for(config, logit_set)
    splits = _load_splits(config, logit_set)
    folder = config.output_dir or Path("runs") / logit_set.root.name
    make_folder(folder)
    settings = _settings(config, student_config, logit_set, splits["train"])
    places = {"logit_set": str(logit_set.root.resolve())}
    finished = start_run(folder / RUN_RECORD, settings, command, folder / CHECKPOINT, places)
    if finished is not None:
        return finished
    remove_temporaries(folder)
    write_text(folder / TOKENIZER_FILE, logit_set.tokenizer_json())
    seed_step(config.seed, 0)
    student = Student(student_config)
    active = active_ids(splits.values(), student_config.pad_id)
    small = shrunk(student, active).to(default_device())
    splits = {split: renumber(examples, active) for split, examples in splits.items()}

    def save() -> None:
        restore(student, small, active)
        student.save(folder)

    history = _train_epochs(config, small, splits, folder / CHECKPOINT, save)
    versions = {name: version(name) for name in LIBRARIES}
    result = {"history": history, "best": max(history, key=quality), "versions": versions}
    record = finish_run(folder / RUN_RECORD, result)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return record


def student_config_for(config: TrainConfig, logit_set: LogitSet) -> StudentConfig:
    """The architecture that the flags and the set ask for.

    Raises:
        ConfigError: if a size is given that the embedding does not have.
    """
    manifest = logit_set.manifest
    matrix_size, vector_size = DEFAULT_SIZES[config.embedding]
    for flag, given, default in (
        ("--matrix-size", config.matrix_size, matrix_size),
        ("--vector-size", config.vector_size, vector_size),
    ):
        if given is not None and default == 0:
            raise ConfigError(f"{flag}: --embedding {config.embedding} has none")
    if manifest.target.kind == "score" and config.temperature != 1:
        raise ConfigError("--temperature: a score has none; it is for labels and bins")
    return StudentConfig(
        task=manifest.task.name,
        target=manifest.target,
        metrics=manifest.task.metrics,
        is_pair=manifest.task.is_pair,
        vocabulary_size=manifest.tokenizer.vocabulary_size,
        pad_id=manifest.tokenizer.pad_id,
        tokenizer_sha256=manifest.tokenizer.sha256,
        max_seq_length=manifest.max_seq_length,
        matrix_size=config.matrix_size or matrix_size,
        vector_size=config.vector_size or vector_size,
        bidirectional=config.bidirectional and config.embedding != "cbow",
        hidden_size=config.hidden_size,
        hidden_dropout=config.hidden_dropout,
    )


def _set_path(config: TrainConfig) -> Path:
    name = config.logits or config.task
    if name is None or (config.logits and config.task):
        raise ConfigError("what to train from: give --task NAME or --logits SET, one of them")
    return find_set(name, config.store)


def _load_splits(config: TrainConfig, logit_set: LogitSet) -> dict[str, Examples]:
    if "train" not in logit_set.manifest.splits:
        raise DataError(f"{logit_set.root}: has no train split; its splits are {', '.join(logit_set.manifest.splits)}")
    return {
        split: load_examples(logit_set, split, config.where if split == "train" else None)
        for split in logit_set.manifest.splits
    }


def _settings(
    config: TrainConfig, student_config: StudentConfig, logit_set: LogitSet, train_rows: Examples
) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"task", "logits", "store", "output_dir", "allow_unverified", "json_output"}
    return config.model_dump(mode="json", exclude=places) | {
        "matrix_size": student_config.matrix_size,
        "vector_size": student_config.vector_size,
        "bidirectional": student_config.bidirectional,
        "logit_set_fingerprint": logit_set.manifest.fingerprint,
        "query": f"select * {logit_set.query('train', config.where)}",
        "rows": len(train_rows),
        "rows_sha256": train_rows.keys_sha256,
    }


def _train_epochs(
    config: TrainConfig, student: Student, splits: dict[str, Examples], checkpoint: Path, save_best: Callable[[], None]
) -> list[dict[str, Any]]:
    optimizer = torch.optim.Adam(student.parameters(), lr=config.learning_rate, fused=True)
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


def _train_epoch(
    config: TrainConfig, student: Student, optimizer: torch.optim.Optimizer, examples: Examples, epoch: int
) -> float:
    """One pass over the training rows; returns the mean loss."""
    batches = shuffled_batches(examples.lengths.tolist(), config.per_device_train_batch_size, config.seed, epoch)
    total_steps = len(batches) * config.num_train_epochs
    target, device, pad_id = student.config.target, student.device, student.config.pad_id
    gold_N, teacher_NC = gold_tensor(target, examples), torch.from_numpy(examples.teacher_NC)
    total = torch.zeros((), device=device)
    student.train()
    with console.progress(len(batches), f"epoch {epoch + 1}/{config.num_train_epochs}") as bar:
        for number, rows in enumerate(batches):
            step = epoch * len(batches) + number
            seed_step(config.seed, step + 1)
            rate = linear_decay(step, total_steps, config.warmup_steps)
            set_learning_rate(optimizer, config.learning_rate * rate)
            logits_BC = student(*(ids.to(device) for ids in examples.batch(rows, pad_id)))
            loss = _loss(config, target, logits_BC, teacher_NC[rows].to(device), gold_N[rows].to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(student.parameters(), config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach() * len(rows)
            bar.advance()
    mean = float(total) / len(examples)
    if not math.isfinite(mean):
        raise ConfigError(f"the loss of epoch {epoch + 1} is {mean}: training diverged; lower --learning-rate")
    return mean


def _loss(
    config: TrainConfig, target: Target, logits_BC: torch.Tensor, teacher_BC: torch.Tensor, gold_B: torch.Tensor
) -> torch.Tensor:
    if target.kind == "score":
        return score_loss(logits_BC, teacher_BC, gold_B, config.alpha)
    return distillation_loss(logits_BC, teacher_BC, gold_B, config.alpha, config.temperature)


def _out_of_patience(config: TrainConfig, history: list[dict[str, Any]]) -> bool:
    if not history:
        return False
    best = max(history, key=quality)
    return len(history) - int(best["epoch"]) >= config.early_stopping_patience
