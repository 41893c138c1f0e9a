"""What every student of a task is: an encoder, and a head that makes logits of what it gives."""

from typing import Any

import torch
from torch import nn

from student.model.encoder import Encoder
from student.model.encoders import ENCODERS


class Headed(nn.Module):
    """An encoder and a head.

    Args:
        config: the architecture.
        encoder: one that another student has, too. (default: a new one)

    Attributes:
        config: as given.
        encoder: which several students may share.
        head: from a representation to logits.
    """

    config: Any
    encoder: Encoder
    head: nn.Module

    def __init__(self, config: Any, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = ENCODERS[config.embedding].make(config.encoder_shape) if encoder is None else encoder

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        return next(self.parameters()).device
