"""Settings of ``distill recode``. The module does not import torch, so that ``--help`` is quick."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from pipeline.sets.codec_text import RecodedText
from pipeline.sets.record_parts import SET_NAME
from pipeline.shared_settings import JsonFlags, SetFlags, UnverifiedFlags


class RecodeSettings(SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {
        "set": "Set of masked words with codec hidden or dense, or of examples with layer outputs: a path, or a "
        "name in the store."
    }
    codec: RecodedText = Field(
        "sampled-50",
        description="Codec of distributions: sampled-N, sampled-N@T (temperature T), topk-K or dense. Of layers: "
        "SIGNAL=CODEC, such as `states=pca-64 attention=u8`.",
    )
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the new set.")
    plan: bool = Field(False, description="Print the size and the loss of each codec, measured on a sample, and stop.")
    sample: int | None = Field(
        None, ge=1, description="Sample of --plan. Default: 2000 masked positions, or 512 rows with layers."
    )

    @model_validator(mode="after")
    def _written_or_planned(self) -> Self:
        if self.plan:
            extra = sorted({"codec", "name"} & self.model_fields_set)
            if extra:
                raise ValueError(f"--plan: measures all codecs and writes nothing. Remove --{extra[0]}.")
        elif self.name is None:
            raise ValueError("--name: missing. Give the new set a name, or use --plan.")
        elif self.sample is not None:
            raise ValueError("--sample: is the sample of --plan. Add --plan, or remove it.")
        return self
