"""The student that labels words: an encoder that tells of each token, and a head for each.

Shapes: T tokens of all sentences end to end, S starts, one more than there are sentences, P and F numbers of a token,
C logits.
"""

from pathlib import Path
from typing import Self

import torch
from torch import nn

from student.model.architecture import TokenLabelConfig
from student.model.encoder import Encoder
from student.model.encoders import ENCODERS
from student.model.headed import Headed
from student.model.heads import HEADS
from student.model.products import SparseGrads
from student.model.stored import Stored


class Tagger(Headed, Stored):
    """A student whose logits are those of tokens."""

    config_type = TokenLabelConfig
    does = "labels words (type: token_labels)"

    def __init__(self, config: TokenLabelConfig, encoder: Encoder | None = None) -> None:
        super().__init__(config, encoder)
        self.config: TokenLabelConfig = config
        self.reads_alone = ENCODERS[config.embedding].has_sums
        self.dropout = nn.Dropout(0 if HEADS[config.head].drops_itself else config.hidden_dropout)
        num_features = self.encoder.token_size + (3 * self.encoder.size if self.reads_alone else 0)
        self.head = HEADS[config.head].make(config.head_shape, num_features)

    def forward(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns logits_TC, float32, before softmax.

        Args:
            ids_T: int64, all sentences end to end, without special tokens.
            starts_S: int64; sentence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
            sparse_grads: takes the gradients of the tables, see `student.model.products`.
        """
        return self.head(self.dropout(self.features(ids_T, starts_S, sparse_grads)))  # type: ignore[no-any-return]

    def features(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """What is known at each token, features_TF, float32: of the sentence; of sums also of it and those beside.

        What was read up to a token, and from the end back to it, says little of the token itself and its neighbours.
        """
        read_TP = self.encoder.scan(ids_T, starts_S, sparse_grads)
        if not self.reads_alone:
            return read_TP
        each = torch.arange(len(ids_T) + 1, device=ids_T.device)
        return torch.cat([read_TP, *beside(self.encoder.reduce(ids_T, each, sparse_grads), starts_S)], dim=1)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student of words in evaluation mode; errors as of `Stored`."""
        return super().load(folder).eval()


def beside(alone_TF: torch.Tensor, starts_S: torch.Tensor) -> list[torch.Tensor]:
    """What is known of each token's left neighbour, of itself, and of its right one; 0 where there is none."""
    sentence_T = torch.arange(len(starts_S) - 1, device=starts_S.device).repeat_interleave(starts_S.diff())
    is_one_T1 = (sentence_T[1:] == sentence_T[:-1]).unsqueeze(1)
    nothing_1F = alone_TF.new_zeros(min(1, len(alone_TF)), alone_TF.shape[1])
    left_TF = torch.cat([nothing_1F, alone_TF[:-1] * is_one_T1])
    return [left_TF, alone_TF, torch.cat([alone_TF[1:] * is_one_T1, nothing_1F])]
