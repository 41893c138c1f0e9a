"""Codecs and layers as text: the values of ``--codec`` and ``--keep``. The module does not import torch.

Distributions over the vocabulary: ``sampled-N`` (draws, at a temperature T: ``sampled-N@T``), ``topk-K``, ``dense`` or
``hidden``. Vectors of sentences: ``int8``, ``float16`` or ``pca-K``.

Outputs of a teacher's layers are parts with spaces between them, each ``SIGNAL[=LAYERS][:CODEC]``::

    states=2,4:pca-64 cls attention=12 values=12:float32 init=1,2

``LAYERS`` are numbers with commas, or ``all``, which is also the default. The codecs of ``states`` and ``cls`` are
``float16`` (the default), ``float32``, ``int8`` and ``pca-K``, those of ``attention`` and ``values`` are ``u8`` (the
default) and ``float32``. ``init``, the weights of layers, has no codec. A stored signal in another codec is
``SIGNAL=CODEC`` (`recode`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, cast, get_args

from pydantic import AfterValidator

from pipeline.errors import ConfigError, did_you_mean
from pipeline.sets.record_parts import LayersName

CodecName = Literal["dense", "hidden", "topk", "sampled"]
StateCodecName = Literal["float16", "int8", "pca", "float32"]
BlockCodecName = Literal["u8", "float32"]
Pooling = Literal["mean", "cls"]
KeptName = Literal[LayersName, "init"]

DISTRIBUTION_CODECS = ("sampled-N", "sampled-N@T", "topk-K", "dense", "hidden")
VECTOR_CODECS = ("int8", "float16", "pca-K")
STATE_CODECS = ("float16", "float32", "int8", "pca-K")
BLOCK_CODECS = ("u8", "float32")
# The first codec of a signal is its default.
LAYER_CODECS: dict[LayersName, tuple[str, ...]] = {
    "states": STATE_CODECS,
    "cls": STATE_CODECS,
    "attention": BLOCK_CODECS,
    "values": BLOCK_CODECS,
}
MOST_DRAWS = 255  # a count is stored in one byte
NUMBER, TEMPERATURE = r"([1-9]\d{0,6})", r"(\d{1,3}(?:\.\d{1,6})?)"
LAYERS = re.compile(r"\d{1,3}(,\d{1,3})*")


@dataclass(frozen=True)
class CodecText:
    """A codec's name and its numbers, before the teacher's sizes are known.

    Attributes:
        name: the name in records, such as ``sampled`` or ``pca``.
        number: N, K or None.
        temperature: T, of the codec ``sampled``.
    """

    name: str
    number: int | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Kept:
    """Outputs of a teacher's layers that are stored.

    Attributes:
        name: the signal.
        layers: the layers, or None for all.
        codec: the text of their codec. Empty for ``init``.
    """

    name: KeptName
    layers: tuple[int, ...] | None
    codec: str = ""

    @property
    def first(self) -> int:
        """The number of the first layer with the signal. 0 is the embeddings."""
        return 0 if self.name in ("states", "cls") else 1

    def numbers(self, depth: int) -> tuple[int, ...]:
        """Returns the layers, ascending, of a teacher with so many.

        Raises:
            ConfigError: if the teacher lacks one of them.
        """
        numbers = range(self.first, depth + 1) if self.layers is None else self.layers
        wrong = [number for number in numbers if not self.first <= number <= depth]
        if wrong:
            raise ConfigError(
                f"--keep {self.name}: layer {wrong[0]}, but the teacher's go from {self.first} to {depth}"
            )
        return tuple(numbers)


def parse_codec(text: str, codecs: tuple[str, ...]) -> CodecText:
    """Returns the codec of a text such as ``pca-64``, which has the form of one of ``codecs``.

    Raises:
        ValueError: if it has none of these forms, or a number out of bounds.
    """
    for form in codecs:
        pattern = form.replace("-N", f"-{NUMBER}").replace("-K", f"-{NUMBER}").replace("@T", f"@{TEMPERATURE}")
        found = re.fullmatch(pattern, text)
        if found is None:
            continue
        number, temperature = (*found.groups(), None, None)[:2]
        codec = CodecText(form.partition("-")[0], int(number) if number else None, float(temperature or 1))
        if codec.name == "sampled" and (codec.number or 0) > MOST_DRAWS:
            raise ValueError(f"{text!r} has more than {MOST_DRAWS} draws")
        if codec.temperature <= 0:
            raise ValueError(f"{text!r} has a temperature of 0")
        return codec
    raise ValueError(f"{text!r} is not one of the codecs {', '.join(codecs)}")


def parse_kept(text: str) -> tuple[Kept, ...]:
    """Returns the parts of a text such as ``states=2,4:pca-64 cls``, in their order.

    Raises:
        ValueError: naming the part that is wrong.
    """
    kept: list[Kept] = []
    for part in text.split():
        head, colon, codec = part.partition(":")
        name, equals, layers = head.partition("=")
        known = get_args(LayersName)
        if name not in (*known, "init"):
            raise ValueError(f"{part!r}: no signal {name!r}. {did_you_mean(name, (*known, 'init'))}")
        if name in [one.name for one in kept]:
            raise ValueError(f"{part!r}: {name} is there twice")
        if equals and layers != "all" and not LAYERS.fullmatch(layers):
            raise ValueError(f"{part!r}: {layers!r} is neither layers, such as 2,4, nor all")
        if name == "init" and colon:
            raise ValueError(f"{part!r}: weights of layers have no codec")
        if name in LAYER_CODECS:
            codecs = LAYER_CODECS[name]
            codec = _checked(part, codec, codecs) if colon else codecs[0]
        numbers = tuple(sorted({int(layer) for layer in layers.split(",")})) if layers not in ("", "all") else None
        kept.append(Kept(cast("KeptName", name), numbers, codec))
    if not kept:
        raise ValueError("names no signal. Write, for example, states=2,4:pca-64 cls")
    return tuple(kept)


def parse_recoded(text: str) -> dict[LayersName, str]:
    """Returns the codec of each stored signal in a text such as ``states=pca-64 attention=u8``.

    Empty if the text is a codec of distributions.

    Raises:
        ValueError: naming the part that is wrong.
    """
    codecs: dict[LayersName, str] = {}
    for part in text.split() if "=" in text else ():
        name, _, codec = part.partition("=")
        if name not in LAYER_CODECS:
            raise ValueError(f"{part!r}: no signal {name!r}. {did_you_mean(name, tuple(LAYER_CODECS))}")
        if name in codecs:
            raise ValueError(f"{part!r}: {name} is there twice")
        codecs[name] = _checked(part, codec, LAYER_CODECS[name])
    if not codecs:
        parse_codec(text, DISTRIBUTION_CODECS)
    return codecs


def _checked(part: str, codec: str, codecs: tuple[str, ...]) -> str:
    try:
        parse_codec(codec, codecs)
    except ValueError as error:
        raise ValueError(f"{part!r}: {error}") from error
    return codec


def _checks(parse: Callable[[str], object]) -> AfterValidator:
    """Returns a validator that parses a text once, so that mistakes are reported before the work starts."""

    def checked(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(checked)


DistributionCodec = Annotated[str, _checks(partial(parse_codec, codecs=DISTRIBUTION_CODECS))]
VectorCodecText = Annotated[str, _checks(partial(parse_codec, codecs=VECTOR_CODECS))]
KeepText = Annotated[str, _checks(parse_kept)]
RecodedText = Annotated[str, _checks(parse_recoded)]
