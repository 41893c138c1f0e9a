"""The student that is pretrained on vectors: an encoder, and a linear map to the teacher's.

Shapes: N sentences, T tokens of all of them end to end, S = N + 1 starts, E size of the encoder's vectors, F features,
H width of the teacher's.
"""

import torch
from torch import nn

from pipeline.errors import ConfigError, raise_all
from pipeline.sets.sentence_reader import SentenceSet
from student.config import PretrainConfig
from student.model.architecture import VectorConfig
from student.model.products import GradientTaker
from student.pretrain.student import PretrainedStudent, encoder_fields, pretraining_problems


class VectorStudent(PretrainedStudent[VectorConfig]):
    """An encoder, and what makes the teacher's vector of its representation.

    The map reads the mean of a sentence's vectors where the encoder gives their sum: what the teacher says does not
    grow with the length of a sentence.
    """

    config_type = VectorConfig
    does = "was pretrained on vectors of sentences"

    def __init__(self, config: VectorConfig) -> None:
        super().__init__(config)
        self.map = nn.Linear(self.encoder.size, config.width) if config.vector_map == "linear" else nn.Identity()

    def forward(self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: GradientTaker | None = None) -> torch.Tensor:
        """Returns vectors_NH, float32, for arguments as of `Encoder.reduce`."""
        features_NF = self.encoder.reduce(ids_T, starts_S, rows)
        size, lengths_N1 = self.encoder.vector_size, starts_S.diff().clamp(min=1).unsqueeze(1)
        means_NE = features_NF[:, :size] / lengths_N1
        vectors_NH: torch.Tensor = self.map(torch.cat([means_NE, features_NF[:, size:]], dim=1))
        return vectors_NH


def design_vectors(flags: PretrainConfig, sentence_set: SentenceSet) -> VectorConfig:
    """The architecture that the flags ask for, for a set of sentences.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", pretraining_problems(flags))
    width = sentence_set.vectors.codec.width
    encoder = encoder_fields(flags, sentence_set.record)
    if flags.vector_map == "none" and (flags.embedding, encoder["vector_size"]) != ("cbow", width):
        raise ConfigError(
            f"--vector-map none: needs a representation as wide as the teacher's vectors: --embedding cbow "
            f"--vector-size {width}"
        )
    return VectorConfig(subject=sentence_set.record.subject, width=width, vector_map=flags.vector_map, **encoder)
