"""Codecs, which store distributions over the vocabulary: one file per codec, and the table of codecs."""

from typing import Annotated

from pydantic import Field

from pipeline.sets.codecs.codec import Codec
from pipeline.sets.codecs.common import BeyondHalfError, Dense, Distribution, Predictions, Sparse
from pipeline.sets.codecs.decoder import Decoder, read_decoder
from pipeline.sets.codecs.dense import DenseCodec
from pipeline.sets.codecs.hidden import HiddenCodec
from pipeline.sets.codecs.sampled import SampledCodec
from pipeline.sets.codecs.topk import TopKCodec
from pipeline.sets.config import CodecFlags, CodecName

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
    "Predictions",
    "Sparse",
    "codec_for",
    "read_decoder",
]
