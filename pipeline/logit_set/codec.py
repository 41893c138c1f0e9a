"""Which codec a set uses: how a teacher's distribution over the vocabulary is stored, position by position."""

from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

CodecName = Literal["dense", "topk", "sampled", "hidden"]
MAX_UINT16 = 2**16


class Codec(BaseModel):
    """A codec and its settings, as a set's ``distill.json`` records them.

    Attributes:
        vocabulary_size: V.
        hidden_size: H, for ``hidden``.
        top_k: candidates per position, for ``topk``.
        num_samples: draws per position, for ``sampled``.
        temperature: of the distribution that was drawn from, for ``sampled``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: CodecName
    vocabulary_size: int = Field(ge=2)
    hidden_size: int | None = Field(None, ge=1)
    top_k: int | None = Field(None, ge=1)
    num_samples: int | None = Field(None, ge=1, le=255)
    temperature: float | None = Field(None, gt=0)

    def __str__(self) -> str:
        number = self.top_k or self.num_samples
        heated = f" at T={self.temperature:g}" if self.temperature not in (None, 1) else ""
        return self.name + (f"-{number}" if number else "") + heated


def id_type(vocabulary_size: int) -> pa.DataType:
    """The type that ids are stored in."""
    return pa.uint16() if vocabulary_size <= MAX_UINT16 else pa.uint32()
