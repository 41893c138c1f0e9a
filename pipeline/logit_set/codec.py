"""Which codec a set uses: how a teacher's distribution over the vocabulary is stored, position by position."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

CodecName = Literal["dense", "topk", "sampled", "hidden"]


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
