"""Common parts of fine-tuning: processes, precision, optimizer, settings, the run, and saving the teacher."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import KwargsHandler
from transformers import AutoTokenizer

from pipeline.devices import has_fast_bf16, processes
from pipeline.environment import MIXED_PRECISION, mixed_precision
from pipeline.errors import ConfigError
from pipeline.file_names import FINETUNE_RECORD
from pipeline.files import library_writes
from pipeline.record_file import Record
from pipeline.settings import deciding
from pipeline.sources import Source, rows_sha256
from pipeline.tasks.task import Task
from pipeline.training.joint import check_free
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run import Run
from teacher.finetune_settings import AdamwFlags, Encoder, FinetuneSettings
from teacher.models.classifier import Teacher
from teacher.models.loaded import (
    BASE_MODEL,
    CONFIG,
    SENTENCE_ENCODER,
    base_model_of,
    is_sentence_encoder,
    sentence_encoder_of,
    weights_sha256,
)


def new_accelerator(*handlers: KwargsHandler) -> Accelerator:
    """Joins the processes of this command, and leaves precision to `autocast`, so that scores stay in fp32."""
    training_precision()
    return Accelerator(cpu=processes().device.type == "cpu", mixed_precision="no", kwargs_handlers=list(handlers))


def training_precision() -> str:
    """Returns the precision of products in a training step: bf16 if that is fast or requested, otherwise fp32."""
    asked = mixed_precision()
    if asked not in ("no", "bf16"):
        raise ConfigError(
            f"{MIXED_PRECISION}={asked}: teachers can only be fine-tuned in bf16 or fp32. Repeat with "
            "`accelerate launch --mixed_precision bf16`, or with no."
        )
    return "bf16" if asked == "bf16" or has_fast_bf16() else "fp32"


def autocast(device: torch.device) -> torch.autocast:
    """Runs the block in the `training_precision`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=training_precision() == "bf16")


def adamw(model: torch.nn.Module, flags: AdamwFlags) -> torch.optim.Optimizer:
    """Returns AdamW, without decay of biases and layer norms."""
    # BERT's original training code excludes biases and LayerNorm weights from decay, too. All of them are vectors.
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": flags.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # One fused kernel per step instead of several per parameter, which matters for the 200 tensors of a BERT.
    return torch.optim.AdamW(groups, lr=flags.learning_rate, fused=True)


class AcceleratedOptimizer(TrainOptimizer):
    """Optimizes a model in all processes by the mean gradient of their losses."""

    def __init__(
        self, accelerator: Accelerator, model: torch.nn.Module, inner: torch.optim.Optimizer, max_grad_norm: float
    ) -> None:
        super().__init__(inner, max_grad_norm)
        self._accelerator, self._model = accelerator, model

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Averages gradients over all processes. The loss stays that of this process."""
        self._accelerator.backward(loss)
        return loss.detach()

    def clip(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this."""
        self._accelerator.clip_grad_norm_(self._model.parameters(), max_norm)


def classifier_settings(
    config: FinetuneSettings, task: Task, source: Source, teacher: Teacher, accelerator: Accelerator
) -> dict[str, Any]:
    """Returns the settings that decide a classifier: hashes of rows and encoder, not their paths."""
    # Hashes instead of names: the same rows or encoder may move to another folder and the run still resumes.
    settings = deciding(config) | {
        "task": f"{task.name} version {task.version}",
        "target": teacher.target.model_dump(mode="json"),
        "metrics": list(task.metrics),
        "encoder": weights_sha256(teacher.model.base_model),
        "precision": training_precision(),
        "processes": accelerator.num_processes,
    }
    return settings | {f"rows.{split}": rows_sha256(rows) for split, rows in source.splits.items()}


def origin(encoder: Encoder) -> dict[str, str]:
    """Returns entries of the result: the sentence encoder and the hub model that the teacher was fine-tuned from.

    Both may have been reached through another teacher. An entry is missing if it is unknown.
    """
    start = encoder.model_name_or_path
    name = start if is_sentence_encoder(start, encoder.model_revision) else sentence_encoder_of(start)
    found = {SENTENCE_ENCODER: name, BASE_MODEL: base_model_of(start)}
    return {key: value for key, value in found.items() if value is not None}


def start_run(
    folder: Path, settings: dict[str, Any], command: str, accelerator: Accelerator
) -> tuple[Run, Record | None]:
    """Starts or resumes the run in a folder, in all processes. Also returns its record if it is finished.

    Raises:
        FingerprintMismatchError: if the folder holds a run with other settings, or another model, such as the encoder.
    """
    rank, wait = accelerator.process_index, accelerator.wait_for_everyone
    run = Run(folder, settings, command, record_name=FINETUNE_RECORD, rank=rank, wait=wait)
    with accelerator.main_process_first():
        if run.is_main and not (folder / FINETUNE_RECORD).exists():
            check_free(folder / FINETUNE_RECORD, settings, folder / CONFIG)
        return run, run.start()


def save_teacher(model: Any, name: str, revision: str | None, folder: Path) -> None:
    """Writes a teacher as transformers does: weights, config, and the tokenizer of the initial model."""
    # Only the transformers object can save all files of a tokenizer, and `LoadedTokenizer` keeps just its fast part.
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    with library_writes(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
