"""The student that is pretrained: an encoder, and a prediction head over the vocabulary.

Shapes: B batch, L tokens, P masked positions of the batch, F features of a token, V vocabulary.
"""

import torch
from torch import nn

from pipeline.errors import ConfigError, raise_all
from pipeline.sets.record import SetRecord
from student.config import PretrainConfig
from student.model.architecture import MlmConfig
from student.model.products import GradientTaker
from student.pretrain.student import PretrainedStudent, encoder_fields, pretraining_problems


class MlmStudent(PretrainedStudent[MlmConfig]):
    """An encoder and the paper's head: one linear layer, not tied to anything."""

    config_type = MlmConfig
    does = "was pretrained on masked words"

    def __init__(self, config: MlmConfig) -> None:
        super().__init__(config)
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


def design_mlm(flags: PretrainConfig, record: SetRecord) -> MlmConfig:
    """The architecture that the flags ask for, for a set of tokens.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", pretraining_problems(flags))
    return MlmConfig(
        corpus=record.subject,
        num_outputs=record.codec.vocabulary_size,
        **encoder_fields(flags, record),
    )
