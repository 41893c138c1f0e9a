"""What pretrained students have in common: an encoder, and a folder that they are written to and read from."""

from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import nn

from pipeline.errors import IntegrityError
from pipeline.logit_set.record import SetRecord
from student.config import PretrainConfig
from student.model.architecture import MlmConfig, VectorConfig
from student.model.config_file import read_encoder_config
from student.model.design import embedding_problems
from student.model.encoders import ENCODERS
from student.model.weights import CONFIG_FILE, check_room, load_weights, save_weights

C = TypeVar("C", MlmConfig, VectorConfig)


class PretrainedStudent(nn.Module, Generic[C]):
    """An encoder with what it is pretrained through.

    Attributes:
        config: its architecture.
        config_type: what that is, which tells one kind from the other.
        title: the kind, for messages.
    """

    config_type: ClassVar[type[MlmConfig] | type[VectorConfig]]
    title: ClassVar[str]

    def __init__(self, config: C) -> None:
        super().__init__()
        self.config: C = config
        self.encoder = ENCODERS[config.embedding].make(config.encoder_shape)

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        return next(self.parameters()).device

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        save_weights(folder, self.config.model_dump_json(indent=2), self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a pretrained student.

        Raises:
            IntegrityError: if a file is missing or damaged, or it is another kind of student.
        """
        config = read_encoder_config(folder / CONFIG_FILE)
        if not isinstance(config, cls.config_type):
            raise IntegrityError(f"{folder}: not a student that was pretrained on {cls.title}")
        check_room(folder, config.least_bytes)
        student = cls(config)  # type: ignore[arg-type]  # which of the two a class takes, it says by `config_type`
        load_weights(folder, student)
        return student


def pretraining_problems(flags: PretrainConfig) -> list[str]:
    """Which flags were given that do not fit the embedding, or an embedding that cannot be pretrained."""
    problems = embedding_problems(flags, "pretraining")
    if not ENCODERS[flags.embedding].has_sums:
        problems = [f"--embedding {flags.embedding}: cannot be pretrained; take hybrid, cmow or cbow"]
    return problems


def encoder_fields(flags: PretrainConfig, record: SetRecord) -> dict[str, Any]:
    """The fields of a pretrained student's architecture that describe its encoder and its tokens."""
    return {
        "vocabulary_size": record.tokenizer.vocabulary_size,
        "pad_id": record.tokenizer.pad_id,
        "tokenizer_sha256": record.tokenizer.sha256,
        "max_seq_length": record.max_seq_length,
        "embedding": flags.embedding,
        **ENCODERS[flags.embedding].parameters(flags, reads_tokens=True),
        "initializer_range": flags.initializer_range,
    }
