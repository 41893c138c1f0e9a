"""Fine-tuning a BERT into a teacher: Accelerate loop, dynamic padding, best checkpoint by the dev metric, resumable.

Shapes: B batch, C logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.nn import functional

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import DataError, TeacherError
from pipeline.files import make_folder
from pipeline.sources import ROWS_AT_ONCE, Source, load_source, rows_sha256, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import NO_LABEL, gold_arrays, gold_classes, make_target
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import Tokenized
from pipeline.training.run_record import RunRecord, finish_run, start_run
from pipeline.training.steps import (
    has_fast_bf16,
    last_is_best,
    linear_decay,
    load_checkpoint,
    quality,
    save_checkpoint,
    seed_step,
    set_learning_rate,
    shuffled_batches,
)
from teacher.config import FinetuneTask
from teacher.finetune.common import CHECKPOINT, adamw, save_teacher
from teacher.inference.batches import collate, default_tokens_per_batch, teacher_logits
from teacher.inference.classifier import Teacher, new_classifier
from teacher.inference.loaded import FINETUNE_RECORD, weights_sha256


@dataclass(frozen=True)
class Split:
    """Rows of a split; as tokens, which take far more memory than their texts, only those of a batch.

    Attributes:
        rows: the source rows, N of them.
        lengths_N: tokens per row.
        label_N: int64 gold classes, ``NO_LABEL`` where there is none.
        score_N: float32 gold scores, NaN where there is none.
    """

    rows: pa.Table
    lengths_N: Ints
    label_N: Ints
    score_N: Floats


@dataclass
class Progress:
    """How far a run has come: ``step`` within ``epoch``, and the metrics of the epochs behind it."""

    epoch: int = 0
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Loop:
    """What the training loop works with; ``model`` and ``optimizer`` are as Accelerate prepared them."""

    config: FinetuneTask
    teacher: Teacher
    accelerator: Accelerator
    model: torch.nn.Module
    optimizer: Any
    progress: Progress


def finetune(config: FinetuneTask, command: str) -> RunRecord:
    """Fine-tunes a teacher into ``config.output_dir``, or goes on with it.

    Returns:
        The record that is also written to ``finetune.json``: settings, metrics per epoch, and the best epoch, whose
        weights are kept.

    Raises:
        DataError: if there is no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    config.check()
    task = load_task(config.task, config.manifest)
    source = load_source(task, config.data)
    if "train" not in source.splits:
        raise DataError(f"task {task.name!r}: no train split in {source.description}, nothing to fine-tune on")
    assert config.objective != "mlm", "check() has refused it"
    target = make_target(task, config.objective)
    make_folder(config.output_dir)
    accelerator = Accelerator()
    seed_step(config.seed, 0)
    teacher = new_classifier(task, target, config.model_name_or_path, config.model_revision, config.max_seq_length)
    settings = _settings(config, task, source, teacher) | {"processes": accelerator.num_processes}
    record_path, checkpoint = config.output_dir / FINETUNE_RECORD, config.output_dir / CHECKPOINT
    with accelerator.main_process_first():
        finished = start_run(record_path, settings, command, checkpoint)
    if finished is not None:
        return finished if accelerator.is_main_process else {}
    splits = {name: _split(teacher, rows, config.max_seq_length) for name, rows in source.splits.items()}
    history = _train(config, task, teacher, splits, accelerator)
    if not accelerator.is_main_process:
        return {}
    record = finish_run(record_path, {"history": history, "best": max(history, key=quality)})
    checkpoint.unlink(missing_ok=True)
    return record


def _settings(config: FinetuneTask, task: Task, source: Source, teacher: Teacher) -> dict[str, Any]:
    """What decides the result; where rows and encoder lie does not, only what is in them."""
    places = {"task", "data", "manifest", "model_name_or_path", "model_revision", "output_dir", "save_steps"}
    settings = config.model_dump(mode="json", exclude={*places, "objective", "json_output"})
    settings |= {
        "task": f"{task.name} version {task.version}",
        "target": teacher.target.model_dump(mode="json"),
        "metrics": list(task.metrics),
        "encoder": weights_sha256(teacher.model.base_model),
        "precision": "bf16" if has_fast_bf16() else "fp32",
    }
    return settings | {f"rows.{split}": rows_sha256(rows) for split, rows in source.splits.items()}


def _split(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Split:
    parts = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
    lengths = [len(row.ids) for part in parts for row in teacher.reader.tokenize(*sentences(part), max_seq_length)]
    return Split(rows, np.array(lengths, dtype=np.int64), *gold_arrays(rows))


def _inputs(loop: Loop, split: Split, numbers: Sequence[int]) -> list[Tokenized]:
    """Some rows of a split in tokens."""
    rows = split.rows.take(pa.array(numbers, pa.int64()))
    return loop.teacher.reader.tokenize(*sentences(rows), loop.config.max_seq_length)


def _train(
    config: FinetuneTask, task: Task, teacher: Teacher, splits: dict[str, Split], accelerator: Accelerator
) -> list[dict[str, Any]]:
    optimizer = adamw(teacher.model, config.learning_rate, config.weight_decay)
    saved = load_checkpoint(config.output_dir / CHECKPOINT, teacher.model, optimizer)
    progress = Progress(**saved) if saved else Progress()
    model, optimizer = accelerator.prepare(teacher.model, optimizer)
    loop = Loop(config, teacher, accelerator, model, optimizer, progress)
    dev = {name: split for name, split in splits.items() if name != "train"}
    _save_if_best(loop)  # the last try may have been stopped before it could
    while progress.epoch < config.num_train_epochs:
        _train_epoch(loop, splits["train"])
        metrics = {name: _evaluate(loop, task, split) for name, split in dev.items()}
        entry = {"epoch": progress.epoch + 1, "metrics": metrics}
        console.note(f"epoch {entry['epoch']}: {_spoken(metrics)}")
        progress.history.append(entry)
        progress.epoch, progress.step = progress.epoch + 1, 0
        _save_checkpoint(loop)
        _save_if_best(loop)
        accelerator.wait_for_everyone()
    return progress.history


def _train_epoch(loop: Loop, train: Split) -> None:
    """One pass over the rows with gold, or the rest of one that was interrupted."""
    config, progress, processes = loop.config, loop.progress, loop.accelerator.num_processes
    gold_N, rows = _gold(loop.teacher, train)
    if not len(rows):
        raise DataError("the train split has no row with gold, nothing to fine-tune on")
    lengths = train.lengths_N[rows].tolist()
    batches = shuffled_batches(lengths, config.per_device_train_batch_size, config.seed, progress.epoch)
    steps = -(-len(batches) // processes)
    loop.model.train()
    with console.progress(steps, f"epoch {progress.epoch + 1}/{config.num_train_epochs}") as bar:
        bar.advance(progress.step)
        while progress.step < steps:
            number = progress.epoch * steps + progress.step
            rate = linear_decay(number, config.num_train_epochs * steps, config.warmup_steps)
            set_learning_rate(loop.optimizer, config.learning_rate * rate)
            seed_step(config.seed, number + 1, loop.accelerator.process_index)
            # all processes take the same number of steps; a short last round starts over with the first batches
            place = (progress.step * processes + loop.accelerator.process_index) % len(batches)
            batch = [int(rows[k]) for k in batches[place]]
            loss = _step(loop, _inputs(loop, train, batch), gold_N[batch])
            progress.step += 1
            bar.advance()
            due = progress.step % config.save_steps == 0
            if (due or progress.step == steps) and not math.isfinite(float(loss)):
                raise TeacherError(
                    f"the loss at step {number + 1} is {float(loss)}: it diverged; lower --learning-rate"
                )
            if due and progress.step < steps:
                _save_checkpoint(loop)


def _step(loop: Loop, inputs: list[Tokenized], gold_B: Floats | Ints) -> torch.Tensor:
    accelerator = loop.accelerator
    batch = {key: value.to(accelerator.device) for key, value in collate(loop.teacher, inputs).items()}
    gold = torch.as_tensor(gold_B, device=accelerator.device)
    with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=has_fast_bf16()):
        logits_BC = loop.model(**batch).logits.float()
    if loop.teacher.target.kind == "score":
        loss = functional.mse_loss(logits_BC[:, 0], gold)
    else:
        loss = functional.cross_entropy(logits_BC, gold)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(loop.model.parameters(), loop.config.max_grad_norm)
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    return loss.detach()


def _save_if_best(loop: Loop) -> None:
    """Keeps the weights if the last epoch is the best so far."""
    is_best = loop.progress.step == 0 and last_is_best(loop.progress.history)
    if is_best and loop.accelerator.is_main_process:
        model = loop.accelerator.unwrap_model(loop.model)
        save_teacher(model, loop.teacher.name, loop.teacher.revision, loop.config.output_dir)


def _save_checkpoint(loop: Loop) -> None:
    if loop.accelerator.is_main_process:
        model = loop.accelerator.unwrap_model(loop.model)
        save_checkpoint(loop.config.output_dir / CHECKPOINT, model, loop.optimizer, vars(loop.progress))


def _gold(teacher: Teacher, split: Split) -> tuple[Floats | Ints, Ints]:
    """Training targets [N] of every row, and the numbers of the rows that have one."""
    if teacher.target.kind == "score":
        return split.score_N, np.flatnonzero(np.isfinite(split.score_N))
    class_N = gold_classes(teacher.target, split.label_N, split.score_N)
    return class_N, np.flatnonzero(class_N != NO_LABEL)


def _evaluate(loop: Loop, task: Task, split: Split) -> dict[str, float]:
    """Metrics on a dev split, in fp32 as a dump has them; each process takes every n-th row."""
    accelerator = loop.accelerator
    mine = range(accelerator.process_index, split.rows.num_rows, accelerator.num_processes)
    loop.model.eval()
    with torch.no_grad():
        max_tokens = default_tokens_per_batch(accelerator.device)
        logits = teacher_logits(loop.teacher, _inputs(loop, split, mine), max_tokens)
    gathered = dict(gather_object(list(zip(mine, logits.tolist(), strict=True))))
    logits_NC = np.array([gathered[row] for row in range(split.rows.num_rows)], dtype=np.float32)
    return score_logits(task.metrics, loop.teacher.target, logits_NC, split.label_N, split.score_N)


def _spoken(metrics: dict[str, dict[str, float]]) -> str:
    parts = [f"{split} {name} {value:.4f}" for split, values in metrics.items() for name, value in values.items()]
    return ", ".join(parts) or "no dev split"
