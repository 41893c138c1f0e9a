"""The sizes of a BERT besides its width. The module does not import torch."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

# Three layers are those of the students in MKD and How to Distill your BERT. Heads and positions are BERT-base's.
NUM_LAYERS, NUM_HEADS, POSITIONS = 3, 12, 512


class BertShape(BaseModel):
    """The sizes of a BERT's layers, under Hugging Face's names.

    Attributes:
        layer_norm_eps: the number that each LayerNorm adds to the variance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_hidden_layers: int = Field(ge=1, le=128)
    num_attention_heads: int = Field(ge=1, le=256)
    intermediate_size: int = Field(ge=1, le=2**18)
    max_position_embeddings: int = Field(ge=1, le=2**16)
    type_vocab_size: int = Field(2, ge=1, le=2**8)
    layer_norm_eps: float = Field(1e-12, gt=0, le=1)

    def num_weights(self, width: int) -> int:
        """Returns the number of weights in the matrices of all layers of this width."""
        return self.num_hidden_layers * (4 * width**2 + 2 * width * self.intermediate_size)


class Inherited(NamedTuple):
    """Returns the sizes of so many of the layers that a student starts from."""

    width: int
    shape: BertShape
