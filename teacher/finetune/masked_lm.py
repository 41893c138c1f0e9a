"""Training a masked LM on a corpus, from an encoder with or without a prediction head; resumable at any step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch.nn import functional

from pipeline import console
from pipeline.errors import DataError, TeacherError
from pipeline.files import make_folder
from pipeline.training.run_record import RunRecord, finish_run, start_run
from pipeline.training.steps import (
    has_fast_bf16,
    linear_decay,
    load_checkpoint,
    save_checkpoint,
    seed_step,
    set_learning_rate,
    shuffled_batches,
)
from teacher.config import FinetuneCorpus
from teacher.corpus.masking import Masked, MaskingPlan, mask
from teacher.corpus.text import TRAIN, VALIDATION, Text, masking_plan, open_text
from teacher.finetune.common import CHECKPOINT, adamw, save_teacher
from teacher.inference.batches import default_tokens_per_batch, token_budget_batches
from teacher.inference.loaded import FINETUNE_RECORD, weights_sha256
from teacher.inference.masked_lm import MaskedLm, load_masked_lm, predict_masked

BLOCK_DOCUMENTS, BLOCKS_PER_POOL = 256, 32
VALIDATION_DOCUMENTS = 1000


@dataclass
class Progress:
    """How far a run has come: ``step`` in all, ``batch`` within ``pool``, and what validation has said."""

    step: int = 0
    pool: int = 0
    batch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def finetune_mlm(config: FinetuneCorpus, command: str) -> RunRecord:
    """Trains a masked LM into ``config.output_dir``, or goes on with it.

    Returns:
        The record that is also written to ``finetune.json``: settings, and the masked accuracy and perplexity on held
        out documents. Empty on other ranks than the first.

    Raises:
        ConfigError: for flags that do not fit a corpus.
        DataError: if there is no text to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    config.check()
    text = open_text(config, config.max_seq_length)
    make_folder(config.output_dir)
    accelerator = Accelerator()
    seed_step(config.seed, 0)
    lm = load_masked_lm(config.model_name_or_path, config.model_revision, config.max_seq_length, new_head=True)
    settings = _settings(config, text, lm) | {"processes": accelerator.num_processes}
    record_path, checkpoint = config.output_dir / FINETUNE_RECORD, config.output_dir / CHECKPOINT
    with accelerator.main_process_first():
        finished = start_run(record_path, settings, command, checkpoint)
    if finished is not None:
        return finished if accelerator.is_main_process else {}
    history = _train(config, text, lm, accelerator)
    if not accelerator.is_main_process:
        return {}
    record = finish_run(record_path, {"history": history, "best": history[-1]})
    checkpoint.unlink(missing_ok=True)
    return record


def _settings(config: FinetuneCorpus, text: Text, lm: MaskedLm) -> dict[str, Any]:
    """What decides the result; where text and encoder lie does not."""
    places = {"data", "manifest", "model_name_or_path", "model_revision", "output_dir", "save_steps"}
    others = {"max_documents", "json_output"}
    return config.model_dump(mode="json", exclude={*places, *others}) | {
        "corpus": f"{text.corpus.name} version {text.corpus.version}",
        "documents": text.documents.sha256,
        "encoder": weights_sha256(lm.model.base_model),
        "precision": "bf16" if has_fast_bf16() else "fp32",
    }


def _train(config: FinetuneCorpus, text: Text, lm: MaskedLm, accelerator: Accelerator) -> list[dict[str, Any]]:
    optimizer: Any = adamw(lm.model, config.learning_rate, config.weight_decay)
    saved = load_checkpoint(config.output_dir / CHECKPOINT, lm.model, optimizer)
    progress = Progress(**saved) if saved else Progress()
    model, optimizer = accelerator.prepare(lm.model, optimizer)
    plan = masking_plan(text, lm.tokens, config.seed, num_copies=1)
    validation = _validation(text, lm, plan)
    with console.progress(config.max_steps, "training") as bar:
        bar.advance(progress.step)
        for masked, rows in _batches(config, text, lm, plan, progress, accelerator):
            rate = linear_decay(progress.step, config.max_steps, config.warmup_steps)
            set_learning_rate(optimizer, config.learning_rate * rate)
            seed_step(config.seed, progress.step + 1, accelerator.process_index)
            model.train()
            loss = _loss(lm, model, masked, rows)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            bar.advance()
            if progress.step % config.save_steps == 0 or progress.step == config.max_steps:
                _check_and_save(config, lm, optimizer, progress, float(loss.detach()), validation, accelerator)
            if progress.step >= config.max_steps:
                break
    if accelerator.is_main_process:
        save_teacher(accelerator.unwrap_model(model), lm.name, lm.revision, config.output_dir)
    return progress.history


def _check_and_save(
    config: FinetuneCorpus,
    lm: MaskedLm,
    optimizer: Any,
    progress: Progress,
    loss: float,
    validation: Masked | None,
    accelerator: Accelerator,
) -> None:
    if not math.isfinite(loss):
        raise TeacherError(f"the loss at step {progress.step} is {loss}: it diverged; lower --learning-rate")
    metrics = {} if validation is None else evaluate_mlm(lm, validation)
    spoken = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    console.note(f"step {progress.step}: loss {loss:.4f}, validation {spoken or 'no text'}")
    progress.history.append({"epoch": progress.step, "loss": loss, "metrics": {VALIDATION: metrics} if metrics else {}})
    if accelerator.is_main_process:
        save_checkpoint(config.output_dir / CHECKPOINT, lm.model, optimizer, vars(progress))


def _batches(
    config: FinetuneCorpus, text: Text, lm: MaskedLm, plan: MaskingPlan, progress: Progress, accelerator: Accelerator
) -> Iterator[tuple[Masked, list[int]]]:
    """The batches from where ``progress`` stands on, which it keeps up to date; each process takes every n-th."""
    processes, rank = accelerator.num_processes, accelerator.process_index
    for pool in count(progress.pool):
        masked = _pool(config, text, lm, plan, pool)
        lengths = masked.ids.lengths.tolist()
        batches = shuffled_batches(lengths, config.per_device_train_batch_size, config.seed, pool)
        rounds = -(-len(batches) // processes)
        first = progress.batch if pool == progress.pool else 0
        for number in range(first, rounds):
            progress.pool, progress.batch = pool, number + 1
            # all processes take the same number of steps; a short last round starts over with the first batches
            yield masked, batches[(number * processes + rank) % len(batches)]


def _pool(config: FinetuneCorpus, text: Text, lm: MaskedLm, plan: MaskingPlan, pool: int) -> Masked:
    """Masked sequences of random blocks of documents; each pass over the corpus masks them anew."""
    total = text.documents.num_documents
    blocks = -(-total // BLOCK_DOCUMENTS)
    passes, number = divmod(pool, -(-blocks // BLOCKS_PER_POOL))
    order = np.random.default_rng([config.seed, passes]).permutation(blocks)
    chosen = order[number * BLOCKS_PER_POOL : (number + 1) * BLOCKS_PER_POOL]
    ranges = [(int(k) * BLOCK_DOCUMENTS, min(total, (int(k) + 1) * BLOCK_DOCUMENTS)) for k in chosen]
    parts = [mask(part, plan, passes) for low, high in ranges for part in text.sequences(lm.tokens, TRAIN, low, high)]
    if not parts:
        raise DataError(
            f"{text.documents.description}: no text to train on that is as long as --min-seq-length "
            f"{config.min_seq_length}, in {len(ranges) * BLOCK_DOCUMENTS:,} documents"
        )
    return Masked.joined(parts)


def _validation(text: Text, lm: MaskedLm, plan: MaskingPlan) -> Masked | None:
    """Masked sequences of held-out documents, at most so many documents, evenly spread; None if there are none."""
    every, total = text.config.validation_every, text.documents.num_documents
    step = every * -(-total // (every * VALIDATION_DOCUMENTS))
    rows = range(0, total, step)
    parts = [part for row in rows for part in text.sequences(lm.tokens, VALIDATION, row, row + 1)]
    return Masked.joined([mask(part, plan) for part in parts]) if parts else None


def _loss(lm: MaskedLm, model: Any, masked: Masked, rows: list[int]) -> torch.Tensor:
    """Mean cross-entropy of the masked positions, nats."""
    device = lm.model.device
    with torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bf16()):
        _, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows, model)
    return functional.cross_entropy(logits_PV, torch.from_numpy(masked.targets.take(rows).flat).to(device))


@torch.no_grad()
def evaluate_mlm(lm: MaskedLm, masked: Masked) -> dict[str, float]:
    """Share of masked tokens that the model guesses, and its perplexity on them."""
    lm.model.eval()
    device = lm.model.device
    right, nats, positions = 0, 0.0, 0
    for rows in token_budget_batches(masked.ids.lengths.tolist(), default_tokens_per_batch(device)):
        _, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows)
        target_P = torch.from_numpy(masked.targets.take(rows).flat).to(device)
        right += int((logits_PV.argmax(dim=1) == target_P).sum())
        nats += float(functional.cross_entropy(logits_PV, target_P, reduction="sum"))
        positions += len(target_P)
    return {"masked_accuracy": right / positions, "perplexity": math.exp(nats / positions)}
