"""The student that is pretrained on vectors: an encoder, and a linear map to the teacher's.

Shapes: N sentences, T tokens of all of them end to end, S = N + 1 starts, E size of the encoder's vectors, F features,
H width of the teacher's.
"""

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.logit_set.sentence_reader import SentenceSet
from student.config import PretrainConfig
from student.model.architecture import VectorConfig, embedding_problems, read_encoder_config
from student.model.encoders import ENCODERS
from student.model.products import GradientTaker
from student.model.weights import CONFIG_FILE, load_weights, save_weights


class VectorStudent(nn.Module):
    """An encoder, and what makes the teacher's vector of its representation.

    The map reads the mean of a sentence's vectors where the encoder gives their sum: what the teacher says does not
    grow with the length of a sentence.
    """

    def __init__(self, config: VectorConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = ENCODERS[config.embedding].make(config.encoder_shape)
        self.map = nn.Linear(self.encoder.size, config.width) if config.vector_map == "linear" else nn.Identity()

    def forward(self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: GradientTaker | None = None) -> torch.Tensor:
        """Returns vectors_NH, float32, for arguments as of `Encoder.reduce`."""
        features_NF = self.encoder.reduce(ids_T, starts_S, rows)
        size, lengths_N1 = self.encoder.vector_size, starts_S.diff().clamp(min=1).unsqueeze(1)
        means_NE = features_NF[:, :size] / lengths_N1
        vectors_NH: torch.Tensor = self.map(torch.cat([means_NE, features_NF[:, size:]], dim=1))
        return vectors_NH

    @property
    def device(self) -> torch.device:
        """The device that the weights lie on."""
        return next(self.parameters()).device

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        save_weights(folder, self.config, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student that was pretrained on vectors.

        Raises:
            IntegrityError: if a file is missing or damaged, or it is another student.
        """
        config = read_encoder_config(folder / CONFIG_FILE)
        if not isinstance(config, VectorConfig):
            raise IntegrityError(f"{folder}: not a student that was pretrained on vectors of sentences")
        student = cls(config)
        load_weights(folder, student)
        return student


def design_vectors(flags: PretrainConfig, sentence_set: SentenceSet) -> VectorConfig:
    """The architecture that the flags ask for, for a set of sentences.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", embedding_problems(flags, "pretraining"))
    record, width = sentence_set.record, sentence_set.vectors.codec.width
    encoder: dict[str, Any] = ENCODERS[flags.embedding].parameters(flags, reads_tokens=True)
    if flags.vector_map == "none" and (flags.embedding, encoder["vector_size"]) != ("cbow", width):
        raise ConfigError(
            f"--vector-map none: needs a representation as wide as the teacher's vectors: --embedding cbow "
            f"--vector-size {width}"
        )
    return VectorConfig(
        subject=record.subject,
        width=width,
        vector_map=flags.vector_map,
        vocabulary_size=record.tokenizer.vocabulary_size,
        pad_id=record.tokenizer.pad_id,
        tokenizer_sha256=record.tokenizer.sha256,
        max_seq_length=record.max_seq_length,
        embedding=flags.embedding,
        **encoder,
        initializer_range=flags.initializer_range,
    )
