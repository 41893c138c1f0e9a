"""Settings of the commands on sets. The module does not import torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.sets.record_parts import LayersName
from pipeline.settings import Settings

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


class CodecFlags(Settings):
    """What all codecs of distributions have in common: the flag that chooses one."""

    panel: ClassVar = "How distributions over the vocabulary are stored"
    helps: ClassVar = {"codec": "Codec of distributions over the vocabulary."}
    codec: CodecName = "sampled"


class SampledFlags(CodecFlags):
    """Draws of each distribution."""

    codec: Literal["sampled"] = "sampled"
    num_samples: int = Field(50, ge=1, le=255, description="Samples per position (--codec sampled).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the samples (--codec sampled).")


class TopKFlags(CodecFlags):
    """The most likely tokens."""

    codec: Literal["topk"] = "topk"
    top_k: int = Field(50, ge=1, description="Candidates per position (--codec topk).")


class DenseFlags(CodecFlags):
    """Every probability."""

    codec: Literal["dense"] = "dense"


class HiddenFlags(CodecFlags):
    """The input of the last layer, from which every probability can be computed."""

    codec: Literal["hidden"] = "hidden"


AnyCodecFlags = SampledFlags | TopKFlags | DenseFlags | HiddenFlags


class VectorCodecFlags(Settings):
    """What all codecs of vectors have in common: the flag that chooses one."""

    panel: ClassVar = "Vectors of sentences"
    helps: ClassVar = {"vector_codec": "Codec of vectors (--signal vectors)."}
    vector_codec: VectorCodecName = "int8"


class Int8Flags(VectorCodecFlags):
    """A byte per number."""

    vector_codec: Literal["int8"] = "int8"


class Float16Flags(VectorCodecFlags):
    """Two bytes per number."""

    vector_codec: Literal["float16"] = "float16"


class PcaFlags(VectorCodecFlags):
    """Principal components."""

    vector_codec: Literal["pca"] = "pca"
    pca_dims: int = Field(128, ge=1, description="Numbers per vector (--vector-codec pca).")


AnyVectorCodecFlags = Int8Flags | Float16Flags | PcaFlags
