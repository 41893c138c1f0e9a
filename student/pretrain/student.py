"""What pretrained students have in common."""

from typing import Any, Generic, TypeVar

import torch

from pipeline.sets.record import SetRecord
from student.config import PretrainConfig
from student.model.architecture import MlmConfig, VectorConfig
from student.model.design import embedding_problems
from student.model.encoders import ENCODERS
from student.model.stored import Stored

C = TypeVar("C", MlmConfig, VectorConfig)


class PretrainedStudent(Stored, Generic[C]):
    """An encoder with what it is pretrained through.

    Attributes:
        config: its architecture.
    """

    def __init__(self, config: C) -> None:
        super().__init__()
        self.config: C = config
        self.encoder = ENCODERS[config.embedding].make(config.encoder_shape)

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        return next(self.parameters()).device


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
