"""Codecs, which store distributions over the vocabulary: and the table of codecs."""

from typing import Annotated

from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.sets.codec_text import DISTRIBUTION_CODECS, CodecName, parse_codec
from pipeline.sets.codecs.codec import BeyondHalfError, Codec, Decoder, Dense, Distribution, Predictions, Sparse
from pipeline.sets.codecs.distributions import DenseCodec, HiddenCodec, SampledCodec, TopKCodec

AnyCodec = Annotated[DenseCodec | HiddenCodec | TopKCodec | SampledCodec, Field(discriminator="name")]
CODECS: dict[CodecName, type[DenseCodec | HiddenCodec | TopKCodec | SampledCodec]] = {
    "dense": DenseCodec,
    "hidden": HiddenCodec,
    "topk": TopKCodec,
    "sampled": SampledCodec,
}


def codec_for(text: str, vocabulary_size: int, hidden_size: int | None) -> AnyCodec:
    """Returns the codec of a text such as ``topk-50``.

    Args:
        text: its text. See `pipeline.sets.codec_text`.
        vocabulary_size: V, the number of outputs of the teacher's last layer.
        hidden_size: H, the size of that layer's input, or None if the teacher is not available.

    Raises:
        ConfigError: if the text does not fit these sizes.
    """
    asked = parse_codec(text, DISTRIBUTION_CODECS)
    number = asked.number or 0
    if asked.name == "sampled":
        return SampledCodec(vocabulary_size=vocabulary_size, num_samples=number, temperature=asked.temperature)
    if asked.name == "dense":
        return DenseCodec(vocabulary_size=vocabulary_size)
    if asked.name == "topk":
        if number > vocabulary_size:
            raise ConfigError(f"--codec {text}: the vocabulary has only {vocabulary_size} tokens")
        return TopKCodec(vocabulary_size=vocabulary_size, top_k=number)
    if hidden_size is None:
        raise ConfigError("--codec hidden: needs the teacher's hidden states. Use `distill teacher-dump`")
    return HiddenCodec(vocabulary_size=vocabulary_size, hidden_size=hidden_size)


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
]
