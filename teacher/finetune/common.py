"""What fine-tuning for a task and for masked language modelling share."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer


def adamw(model: torch.nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW; biases and layer norms do not decay."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def save_teacher(model: Any, name: str, revision: str | None, folder: Path) -> None:
    """Writes a teacher as transformers does: weights, config, and the tokenizer of the model it began as."""
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(name, revision=revision).save_pretrained(folder)
