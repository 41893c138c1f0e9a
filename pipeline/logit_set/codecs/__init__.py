"""How distributions over the vocabulary are stored: a file per codec, and the table of them."""

from typing import Annotated

from pydantic import Field

from pipeline.logit_set.codecs.codec import Codec
from pipeline.logit_set.codecs.common import BeyondHalfError, Dense, Distribution, Kept, Predictions
from pipeline.logit_set.codecs.decoder import Decoder, read_decoder
from pipeline.logit_set.codecs.dense import DenseCodec
from pipeline.logit_set.codecs.hidden import HiddenCodec
from pipeline.logit_set.codecs.sampled import SampledCodec
from pipeline.logit_set.codecs.topk import TopKCodec
from pipeline.logit_set.config import CodecFlags, CodecName

AnyCodec = Annotated[DenseCodec | HiddenCodec | TopKCodec | SampledCodec, Field(discriminator="name")]
CODECS: dict[CodecName, type[DenseCodec | HiddenCodec | TopKCodec | SampledCodec]] = {
    "dense": DenseCodec,
    "hidden": HiddenCodec,
    "topk": TopKCodec,
    "sampled": SampledCodec,
}


def codec_for(flags: CodecFlags, vocabulary_size: int, hidden_size: int | None) -> AnyCodec:
    """The codec that the flags ask for.

    Args:
        flags: its name and its settings.
        vocabulary_size: of the teacher's last layer, V.
        hidden_size: of its input, H; None where it is not at hand.

    Raises:
        ConfigError: if the flags do not fit these sizes.
    """
    return CODECS[flags.codec].of_flags(flags, vocabulary_size, hidden_size)


__all__ = [
    "CODECS",
    "AnyCodec",
    "BeyondHalfError",
    "Codec",
    "Decoder",
    "Dense",
    "Distribution",
    "Kept",
    "Predictions",
    "codec_for",
    "read_decoder",
]
