"""Codecs, which store distributions over the vocabulary: one file per codec, and the table of codecs."""

from typing import Annotated

from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.sets.codec_text import DISTRIBUTION_CODECS, CodecText, parse_codec
from pipeline.sets.codecs.codec import (
    BeyondHalfError,
    Codec,
    Decoder,
    Dense,
    Distribution,
    Predictions,
    Sparse,
    read_decoder,
)
from pipeline.sets.codecs.lossless import DenseCodec, HiddenCodec
from pipeline.sets.codecs.sparse import SampledCodec, TopKCodec
from pipeline.sets.config import AnyCodecFlags, CodecName, DenseFlags, HiddenFlags, SampledFlags, TopKFlags

AnyCodec = Annotated[DenseCodec | HiddenCodec | TopKCodec | SampledCodec, Field(discriminator="name")]
CODECS: dict[CodecName, type[DenseCodec | HiddenCodec | TopKCodec | SampledCodec]] = {
    "dense": DenseCodec,
    "hidden": HiddenCodec,
    "topk": TopKCodec,
    "sampled": SampledCodec,
}


def codec_for(flags: AnyCodecFlags | str, vocabulary_size: int, hidden_size: int | None) -> AnyCodec:
    """Returns the codec of a text such as ``topk-50``.

    Args:
        flags: its text.
        vocabulary_size: V, the number of outputs of the teacher's last layer.
        hidden_size: H, the size of that layer's input, or None if the teacher is not available.

    Raises:
        ConfigError: if the flags do not fit these sizes.
    """
    if isinstance(flags, str):
        flags = _flags(parse_codec(flags, DISTRIBUTION_CODECS))
    if isinstance(flags, SampledFlags):
        samples, temperature = flags.num_samples, flags.temperature
        return SampledCodec(vocabulary_size=vocabulary_size, num_samples=samples, temperature=temperature)
    if isinstance(flags, DenseFlags):
        return DenseCodec(vocabulary_size=vocabulary_size)
    if isinstance(flags, TopKFlags):
        if flags.top_k > vocabulary_size:
            raise ConfigError(f"--codec topk-{flags.top_k}: the vocabulary has only {vocabulary_size} tokens")
        return TopKCodec(vocabulary_size=vocabulary_size, top_k=flags.top_k)
    if hidden_size is None:
        raise ConfigError("--codec hidden: needs the teacher's hidden states. Use `distill teacher-dump`")
    return HiddenCodec(vocabulary_size=vocabulary_size, hidden_size=hidden_size)


def _flags(codec: CodecText) -> AnyCodecFlags:
    if codec.name == "sampled":
        return SampledFlags(num_samples=codec.number or 0, temperature=codec.temperature)
    if codec.name == "topk":
        return TopKFlags(top_k=codec.number or 0)
    return DenseFlags() if codec.name == "dense" else HiddenFlags()


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
