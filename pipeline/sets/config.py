"""Settings of the commands on sets; free of torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import Config, JsonFlags, SetFlags, UnverifiedFlags, refuse_flags
from pipeline.sets.record_parts import SET_NAME, LayersName

CodecName = Literal["dense", "hidden", "topk", "sampled"]
VectorCodecName = Literal["float16", "int8", "pca"]
StateCodecName = Literal[VectorCodecName, "float32"]
BlockCodecName = Literal["u8", "float32"]
Pooling = Literal["mean", "cls"]
STATE_CODEC = r"^(float32|float16|int8|pca-[1-9]\d{0,3})$"
LAYER_CODECS: dict[LayersName, str] = {  # the flag of a signal's codec
    "states": "states_codec",
    "cls": "cls_codec",
    "attention": "attention_codec",
    "values": "values_codec",
}


class CodecFlags(Config):
    """Which codec, for the commands that write sets of tokens."""

    panel: ClassVar = "How distributions over the vocabulary are stored"
    codec: CodecName = Field("sampled", description="How distributions over the vocabulary are stored.")
    num_samples: int = Field(50, ge=1, le=255, description="Draws per position (--codec sampled).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the draws (--codec sampled).")
    top_k: int = Field(50, ge=1, description="Candidates per position (--codec topk).")


class VectorFlags(Config):
    """Which vectors of sentences, and how they are stored, for the commands that write sets of sentences."""

    panel: ClassVar = "Vectors of sentences"
    pooling: Pooling | None = Field(
        None,
        description="A sentence's vector: mean of its tokens' states, or the first one. (default: as "
        "sentence-transformers has saved it, else mean)",
    )
    vector_codec: VectorCodecName = Field("int8", description="How vectors are stored (--signal vectors).")
    pca_dims: int = Field(128, ge=1, description="Numbers per vector (--vector-codec pca).")


class RecodeConfig(CodecFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {
        "set": "Set of tokens with codec hidden or dense, or of examples with what layers say: a path, or a name in "
        "the store."
    }
    name: str = Field(pattern=SET_NAME, description="Name of the new set.")
    states_codec: str | None = Field(
        None, pattern=STATE_CODEC, description="How states of layers are stored: float16, int8, or pca-K."
    )
    cls_codec: str | None = Field(None, pattern=STATE_CODEC, description="How those of [CLS] are.")
    attention_codec: BlockCodecName | None = Field(None, description="How scores of attention are stored: u8.")
    values_codec: BlockCodecName | None = Field(None, description="How products of values are.")

    @property
    def layer_codecs(self) -> dict[LayersName, str]:
        """The codecs of layers that are wanted, by signal."""
        return {name: codec for name, flag in LAYER_CODECS.items() if (codec := getattr(self, flag)) is not None}

    def check(self) -> None:
        """Raises ConfigError for flags of both kinds of sets."""
        if self.layer_codecs:
            refuse_flags(self, CodecFlags.model_fields, "is for sets of tokens; codecs of layers are not")
