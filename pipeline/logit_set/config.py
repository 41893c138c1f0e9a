"""Settings of the commands on sets; free of torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import Config, JsonFlags, SetFlags, UnverifiedFlags
from pipeline.logit_set.record_parts import SET_NAME

CodecName = Literal["dense", "hidden", "topk", "sampled"]
VectorCodecName = Literal["float16", "int8", "pca"]
StateCodecName = Literal[VectorCodecName, "float32"]
BlockCodecName = Literal["u8", "float32"]
Pooling = Literal["mean", "cls"]


class CodecFlags(Config):
    """Which codec, for the commands that write sets of tokens."""

    panel: ClassVar = "How distributions over the vocabulary are stored"
    codec: CodecName = Field("sampled", description="How distributions over the vocabulary are stored.")
    num_samples: int = Field(50, ge=1, le=255, description="Draws a position (--codec sampled).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the draws (--codec sampled).")
    top_k: int = Field(50, ge=1, description="Candidates a position (--codec topk).")


class VectorFlags(Config):
    """Which vectors of sentences, and how they are stored, for the commands that write sets of sentences."""

    panel: ClassVar = "Vectors of sentences"
    pooling: Pooling | None = Field(
        None,
        description="A sentence's vector: mean of its tokens' states, or the first one. (default: as "
        "sentence-transformers has saved it, else mean)",
    )
    vector_codec: VectorCodecName = Field("int8", description="How vectors are stored (--signal vectors).")
    pca_dims: int = Field(128, ge=1, description="Numbers a vector (--vector-codec pca).")


class RecodeConfig(CodecFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {"logits": "Set of tokens with codec hidden or dense: a path, or a name in the store."}
    name: str = Field(pattern=SET_NAME, description="Name of the new set.")
