"""The student: sentence encoder, pairing, head; saved as a folder that explains itself.

Shapes: B batch, L tokens of the first sentence, K tokens of the second, F features, C logits.
"""

import json
from pathlib import Path
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError
from pipeline.files import write_text
from pipeline.targets import Target
from pipeline.tasks import Metric
from pipeline.training import write_tensors
from student.embeddings import SentenceEncoder
from student.heads import mlp_head
from student.pairing import diff_cat

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class StudentConfig(BaseModel):
    """Architecture of a student, and what its logits mean: ``config.json``.

    Attributes:
        matrix_size: side of the matrices; 0 for none (CBOW).
        vector_size: size of the vectors; 0 for none (CMOW).
        is_pair: whether it takes two sentences, compared by DiffCat.
        tokenizer_sha256: the tokenizer its ids belong to.
        metrics: the task's metrics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    task: str
    target: Target
    metrics: tuple[Metric, ...]
    is_pair: bool
    vocabulary_size: int = Field(ge=1)
    pad_id: int = Field(ge=0)
    tokenizer_sha256: str
    max_seq_length: int = Field(ge=1)
    matrix_size: int = Field(ge=0, le=64)
    vector_size: int = Field(ge=0)
    bidirectional: bool
    hidden_size: int = Field(ge=1)
    hidden_dropout: float = Field(ge=0, lt=1)
    initializer_range: float = Field(0.01, ge=0)

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.matrix_size and not self.vector_size:
            raise ValueError("matrix_size and vector_size are both 0: nothing would be embedded")
        return self


class Student(nn.Module):
    """A matrix-embedding student."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = SentenceEncoder(
            max(config.vocabulary_size, config.pad_id + 1),
            config.matrix_size,
            config.vector_size,
            config.bidirectional,
            config.pad_id,
            config.initializer_range,
        )
        self.dropout = nn.Dropout(config.hidden_dropout)
        num_features = self.encoder.size * (3 if config.is_pair else 1)
        self.head = mlp_head(num_features, config.hidden_size, config.target.num_logits)

    def forward(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor | None = None) -> torch.Tensor:
        """Returns logits_BC, float32, before softmax.

        Args:
            ids1_BL: int64 ids of the first sentences, without special tokens, padded at the end.
            ids2_BK: likewise the second sentences, if the student takes pairs.
        """
        if ids2_BK is None:
            features_BF = self.encoder(ids1_BL)
        else:
            width = max(ids1_BL.shape[1], ids2_BK.shape[1])
            both_BL = torch.cat([self._padded(ids1_BL, width), self._padded(ids2_BK, width)])
            features_BF = diff_cat(*self.encoder(both_BL).chunk(2))
        return self.head(self.dropout(features_BF))  # type: ignore[no-any-return]

    def _padded(self, ids_BL: torch.Tensor, width: int) -> torch.Tensor:
        return functional.pad(ids_BL, (0, width - ids_BL.shape[1]), value=self.config.pad_id)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        write_text(folder / CONFIG_FILE, self.config.model_dump_json(indent=2) + "\n")
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_tensors(folder / WEIGHTS_FILE, weights)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student in evaluation mode.

        Raises:
            IntegrityError: if a file is missing or damaged, or of a newer format.
        """
        student = cls(_read_config(folder / CONFIG_FILE))
        try:
            student.load_state_dict(load_file(folder / WEIGHTS_FILE))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise IntegrityError(f"{folder / WEIGHTS_FILE}: not the weights of this student: {error}") from error
        return student.eval()


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _read_config(path: Path) -> StudentConfig:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise IntegrityError(f"{path}: format version {version!r}; this release reads version {FORMAT_VERSION}")
        return parse_model(StudentConfig, values, str(path))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path.parent}: not a student: it has no {path.name}") from error
    except (OSError, ValueError, AttributeError, ConfigError) as error:
        raise IntegrityError(f"{path}: not a student's config: {error}") from error
