"""Which codec a set uses: how a teacher's distribution over the vocabulary is stored, position by position."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.logit_set.records import MAX_HIDDEN_SIZE, MAX_VOCABULARY, Record

CodecName = Literal["dense", "topk", "sampled", "hidden"]
NEEDED: dict[CodecName, tuple[str, ...]] = {
    "dense": (),
    "topk": ("top_k",),
    "sampled": ("num_samples", "temperature"),
    "hidden": ("hidden_size",),
}


class Codec(Record):
    """A codec and its settings, as a set's ``distill.json`` records them.

    Attributes:
        vocabulary_size: V.
        hidden_size: H, for ``hidden``.
        top_k: candidates per position, for ``topk``.
        num_samples: draws per position, for ``sampled``.
        temperature: of the distribution that was drawn from, for ``sampled``.
    """

    name: CodecName
    vocabulary_size: int = Field(ge=2, le=MAX_VOCABULARY)
    hidden_size: int | None = Field(None, ge=1, le=MAX_HIDDEN_SIZE)
    top_k: int | None = Field(None, ge=1, le=MAX_VOCABULARY)
    num_samples: int | None = Field(None, ge=1, le=255)
    temperature: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        missing = [name for name in NEEDED[self.name] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"codec {self.name} needs {' and '.join(missing)}")
        return self

    def __str__(self) -> str:
        number = self.top_k or self.num_samples
        heated = f" at T={self.temperature:g}" if self.temperature not in (None, 1) else ""
        return self.name + (f"-{number}" if number else "") + heated
