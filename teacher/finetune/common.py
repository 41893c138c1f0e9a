"""What fine-tuning for a task and for masked language modelling share."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import AutoTokenizer

from pipeline.training.run import Run
from pipeline.training.run_record import RunRecord
from teacher.inference.loaded import FINETUNE_RECORD


def adamw(model: torch.nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW; biases and layer norms do not decay."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def start_run(
    folder: Path, settings: dict[str, Any], command: str, accelerator: Accelerator
) -> tuple[Run, RunRecord | None]:
    """The run in a folder, begun or gone on with by all processes, and its record if it is finished."""
    rank, wait = accelerator.process_index, accelerator.wait_for_everyone
    run = Run(folder, settings, command, record_name=FINETUNE_RECORD, rank=rank, wait=wait)
    with accelerator.main_process_first():
        return run, run.start()


def save_teacher(model: Any, name: str, revision: str | None, folder: Path) -> None:
    """Writes a teacher as transformers does: weights, config, and the tokenizer of the model it began as."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(name, revision=revision).save_pretrained(folder)
