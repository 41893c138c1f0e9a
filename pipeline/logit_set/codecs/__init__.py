"""How distributions over the vocabulary are stored: a file per codec, and the table of them."""

from typing import Annotated

from pydantic import Field

from pipeline.logit_set.codecs.codec import Codec
from pipeline.logit_set.codecs.common import Decoder, Dense, Distribution, Kept, Predictions, read_decoder
from pipeline.logit_set.codecs.dense import DenseCodec
from pipeline.logit_set.codecs.hidden import HiddenCodec
from pipeline.logit_set.codecs.sampled import SampledCodec
from pipeline.logit_set.codecs.topk import TopKCodec
from pipeline.logit_set.config import CodecName

AnyCodec = Annotated[DenseCodec | HiddenCodec | TopKCodec | SampledCodec, Field(discriminator="name")]
CODECS: dict[CodecName, type[DenseCodec | HiddenCodec | TopKCodec | SampledCodec]] = {
    "dense": DenseCodec,
    "hidden": HiddenCodec,
    "topk": TopKCodec,
    "sampled": SampledCodec,
}

__all__ = [
    "CODECS",
    "AnyCodec",
    "Codec",
    "Decoder",
    "Dense",
    "Distribution",
    "Kept",
    "Predictions",
    "read_decoder",
]
