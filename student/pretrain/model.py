"""The student that is pretrained: an encoder, and a prediction head over the vocabulary.

Shapes: B batch, L tokens, P masked positions of the batch, F features of a token, V vocabulary.
"""

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.logit_set.record import SetRecord
from student.config import PretrainConfig
from student.model.architecture import MlmConfig, embedding_problems, read_encoder_config
from student.model.encoders import ENCODERS
from student.model.products import GradientTaker
from student.model.weights import CONFIG_FILE, load_weights, save_weights


class MlmStudent(nn.Module):
    """An encoder and the paper's head: one linear layer, not tied to anything."""

    def __init__(self, config: MlmConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = ENCODERS[config.embedding].make(config.encoder_shape)
        self.head = nn.Linear(self.encoder.token_size, config.num_outputs)

    def forward(
        self, ids_BL: torch.Tensor, row_P: torch.Tensor, place_P: torch.Tensor, rows: GradientTaker | None = None
    ) -> torch.Tensor:
        """Returns features_PF of positions ``place_P`` of the sequences ``row_P``: the input of `head`.

        A position's features are made of the prefix that ends at it and the suffix that begins at it, both of the
        masked sequence. ``rows`` takes the gradients of the tables, one per number of ``ids_BL``.
        """
        batch_size, length = ids_BL.shape
        starts_S = torch.arange(batch_size + 1, device=ids_BL.device) * length
        return self.encoder.scan(ids_BL.flatten(), starts_S, rows)[row_P * length + place_P]

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        return self.head.weight.device

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        save_weights(folder, self.config, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a pretrained student.

        Raises:
            IntegrityError: if a file is missing or damaged, or it is a student of a task.
        """
        config = read_encoder_config(folder / CONFIG_FILE)
        if not isinstance(config, MlmConfig):
            raise IntegrityError(f"{folder}: a student of a task, not a pretrained one")
        student = cls(config)
        load_weights(folder, student)
        return student


def design_mlm(flags: PretrainConfig, record: SetRecord) -> MlmConfig:
    """The architecture that the flags ask for, for a set of tokens.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", embedding_problems(flags, "pretraining"))
    encoder: dict[str, Any] = ENCODERS[flags.embedding].parameters(flags, reads_tokens=True)
    return MlmConfig(
        corpus=record.subject,
        num_outputs=record.codec.vocabulary_size,
        vocabulary_size=record.tokenizer.vocabulary_size,
        pad_id=record.tokenizer.pad_id,
        tokenizer_sha256=record.tokenizer.sha256,
        max_seq_length=record.max_seq_length,
        embedding=flags.embedding,
        **encoder,
        initializer_range=flags.initializer_range,
    )
