"""Pretrained students: an encoder with the layer for pretraining.

Shapes: B batch, L tokens, P masked positions of the batch, V vocabulary, N sentences, T tokens of all of them end to
end, S = N + 1 starts, E size of the encoder's vectors, F features, H width of the teacher's vectors.
"""

from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.file_names import CONFIG_FILE
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import TokenizerRecord
from student.encoders.products import SparseGrads
from student.encoders.specs import AnyEncoder, Cbow
from student.model.architecture import MaskedWordConfig, SentenceConfig, token_reader_problems
from student.model.build_config import with_sizes
from student.model.config_file import read_encoder_config
from student.model.student import ENCODERS
from student.model.weights import check_room, load_weights, save_weights
from student.pretrain_settings import PretrainSettings

C = TypeVar("C", MaskedWordConfig, SentenceConfig)


class PretrainedStudent(nn.Module, Generic[C]):
    """An encoder with the layer for pretraining.

    Attributes:
        config: its architecture.
        config_type: the class of the config, which differs between kinds.
        does: the description of the kind in messages.
    """

    config_type: ClassVar[type]
    does: ClassVar[str]

    def __init__(self, config: C) -> None:
        super().__init__()
        self.config: C = config
        self.encoder = ENCODERS[config.embedding](config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each atomically."""
        save_weights(folder, self.config.model_dump_json(indent=2), self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student of this kind.

        Raises:
            IntegrityError: if a file is missing or damaged, or it is another kind of student.
        """
        config = read_encoder_config(folder / CONFIG_FILE)
        if not isinstance(config, cls.config_type):
            raise IntegrityError(f"{folder}: not a student that {cls.does}")
        check_room(folder, config.least_bytes)
        # The room was checked above, since building the tables already reserves the memory.
        student = cls(config)  # type: ignore[arg-type]
        load_weights(folder, student)
        return student


class MaskedWordStudent(PretrainedStudent[MaskedWordConfig]):
    """An encoder and the paper's head: one linear layer without tied weights."""

    config_type = MaskedWordConfig
    does = "was pretrained on masked words"

    def __init__(self, config: MaskedWordConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(self.encoder.token_size, config.num_outputs)

    def forward(
        self,
        ids_BL: torch.Tensor,
        row_P: torch.Tensor,
        place_P: torch.Tensor,
        sparse_grads: SparseGrads | None = None,
    ) -> torch.Tensor:
        """Returns features_PF of positions ``place_P`` of the sequences ``row_P``: the input of `head`.

        A position's features combine the prefix that ends at it and the suffix that begins at it, both of the masked
        sequence. ``sparse_grads`` receives the gradients of the tables, one per number of ``ids_BL``.
        """
        batch_size, length = ids_BL.shape
        # Sequences of a batch have equal length here, padding included, because padding is neutral to the scan.
        starts_S = torch.arange(batch_size + 1, device=ids_BL.device) * length
        return self.encoder.scan(ids_BL.flatten(), starts_S, sparse_grads)[row_P * length + place_P]


class SentenceStudent(PretrainedStudent[SentenceConfig]):
    """An encoder, and the map from its representation to the teacher's vector.

    The input of the map is the mean of a sentence's vectors, although the encoder returns their sum, because the
    teacher's vectors do not grow with the length of a sentence.
    """

    config_type = SentenceConfig
    does = "was pretrained on vectors of sentences"

    def __init__(self, config: SentenceConfig) -> None:
        super().__init__(config)
        self.map = nn.Linear(self.encoder.size, config.width) if config.vector_map == "linear" else nn.Identity()

    def forward(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns vectors_NH, float32. See `Encoder.reduce` for the arguments."""
        features_NF = self.encoder.reduce(ids_T, starts_S, sparse_grads)
        size, lengths_N1 = self.config.vector_size, starts_S.diff().clamp(min=1).unsqueeze(1)
        # A teacher's vector keeps its size for longer sentences, while a sum grows with the number of tokens.
        means_NE = features_NF[:, :size] / lengths_N1
        vectors_NH: torch.Tensor = self.map(torch.cat([means_NE, features_NF[:, size:]], dim=1))
        return vectors_NH


def build_masked_word_config(encoder: AnyEncoder, record: SetRecord) -> MaskedWordConfig:
    """Returns the architecture of a student with an encoder, for a set of tokens.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", token_reader_problems(encoder, "pretraining"))
    return MaskedWordConfig(
        corpus=record.dataset_name,
        num_outputs=record.codec.vocabulary_size,
        **encoder_fields(encoder, record, record.tokenizer),
    )


def build_sentence_config(
    settings: PretrainSettings, record: SetRecord, tokenizer: TokenizerRecord, width: int
) -> SentenceConfig:
    """Returns the architecture that the settings describe, for a set of sentences whose vectors have this width.

    ``tokenizer`` is that of the student.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    encoder = settings.encoder
    if settings.vector_map == "none" and not (isinstance(encoder, Cbow) and encoder.vector_size == width):
        raise ConfigError(
            f"--vector-map none: needs a representation as wide as the teacher's vectors: --embedding cbow "
            f"--vector-size {width}"
        )
    return SentenceConfig(
        subject=record.dataset_name,
        width=width,
        vector_map=settings.vector_map,
        **encoder_fields(encoder, record, tokenizer),
    )


def encoder_fields(encoder: AnyEncoder, record: SetRecord, tokenizer: TokenizerRecord) -> dict[str, Any]:
    """Returns the fields of a pretrained student's architecture that describe its encoder and its tokens."""
    return {
        "vocabulary_size": tokenizer.vocabulary_size,
        "pad_id": tokenizer.pad_id,
        "tokenizer_sha256": tokenizer.sha256,
        "max_seq_length": record.max_seq_length,
        "encoder": with_sizes(encoder, None, tokenizer.vocabulary_size),
    }
