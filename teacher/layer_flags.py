"""Flags that choose which outputs of a teacher's layers are stored.

The module does not import torch, so that ``--help`` is quick.
"""

from typing import Any, ClassVar

from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.sets.codec_text import BlockCodecName
from pipeline.sets.record_parts import LayerRows, LayersName
from pipeline.settings import Settings, flag_name

STATE_CODEC = r"^(float32|float16|int8|pca-[1-9]\d{0,3})$"
LAYERS = r"^(all|\d{1,3}(,\d{1,3})*)$"


class OneSignal(Settings):
    """The layers of one signal.

    Attributes:
        name: the name of the signal, and of the flag with its layers.
        first: the number of the first layer with the signal. 0 is the embeddings.
    """

    panel: ClassVar = "Layer outputs"
    name: ClassVar[LayersName]
    first: ClassVar[int] = 0

    def numbers(self, depth: int) -> tuple[int, ...]:
        """The layers, ascending, of a teacher with so many.

        Raises:
            ConfigError: if the teacher lacks one of them.
        """
        return _numbers(self.name, getattr(self, self.name), self.first, depth)


class States(OneSignal):
    """States of every token."""

    name: ClassVar = "states"
    chosen_by: ClassVar = "states"
    states: str = Field(
        pattern=LAYERS, description="Comma-separated layers whose states of every token are stored. 0: embeddings."
    )


class Cls(OneSignal):
    """States of ``[CLS]``."""

    name: ClassVar = "cls"
    chosen_by: ClassVar = "cls"
    cls: str = Field(pattern=LAYERS, description="Comma-separated layers whose state of [CLS] is stored, or all.")


class Attention(OneSignal):
    """Scores of attention."""

    name: ClassVar = "attention"
    chosen_by: ClassVar = "attention"
    first: ClassVar = 1
    attention: str = Field(
        pattern=LAYERS,
        description="Comma-separated layers whose attention scores (before softmax and mask) are stored.",
    )


class Values(OneSignal):
    """Products of values."""

    name: ClassVar = "values"
    chosen_by: ClassVar = "values"
    first: ClassVar = 1
    values: str = Field(
        pattern=LAYERS, description="Comma-separated layers whose products of values are stored (as in MiniLM)."
    )


class Stored(OneSignal):
    """The rows for which a signal is stored."""

    layers_of: LayerRows = Field(
        "originals",
        description="Rows with layer outputs: originals, or all, which includes variants and unlabelled rows.",
    )

    @property
    def codec(self) -> str:
        """The codec of a signal."""
        return str(getattr(self, f"{self.name}_codec"))


class StoredStates(States, Stored):
    """`States`, and how they are stored."""

    states_codec: str = Field(
        "float16",
        pattern=STATE_CODEC,
        description="Codec of states: float32, float16, int8, or pca-K (K bytes per token).",
    )


class StoredCls(Cls, Stored):
    """`Cls`, and how they are stored."""

    cls_codec: str = Field(
        "float16", pattern=STATE_CODEC, description="Codec of the states of [CLS], as --states-codec."
    )


class StoredAttention(Attention, Stored):
    """`Attention`, and how it is stored."""

    attention_codec: BlockCodecName = Field("u8", description="Codec of attention scores. u8: one byte per number.")


class StoredValues(Values, Stored):
    """`Values`, and how they are stored."""

    values_codec: BlockCodecName = Field("u8", description="Codec of products of values, as --attention-codec.")


class WhichLayers(Settings):
    """The signals and their layers."""

    states: States | None = None
    cls: Cls | None = None
    attention: Attention | None = None
    values: Values | None = None

    @property
    def signals(self) -> list[Any]:
        """The requested signals."""
        return [one for one in (self.states, self.cls, self.attention, self.values) if one is not None]


class StoredLayers(WhichLayers):
    """The signals with their layers and codecs."""

    states: StoredStates | None = None
    cls: StoredCls | None = None
    attention: StoredAttention | None = None
    values: StoredValues | None = None

    @property
    def signals(self) -> list[Stored]:
        """See `WhichLayers`."""
        return super().signals


class InitLayers(Settings):
    """The layers whose weights are stored in the set."""

    panel: ClassVar = OneSignal.panel
    init_layers: str | None = Field(
        None,
        pattern=LAYERS,
        description="Layers of the teacher whose weights are stored in the set, counted from 1, or all. A bert can "
        "then start from them without the teacher's folder.",
    )

    def numbers(self, depth: int) -> tuple[int, ...]:
        """The layers, ascending, of a teacher with so many, or none without the flag.

        Raises:
            ConfigError: if the teacher lacks one of them.
        """
        return _numbers("init_layers", self.init_layers, 1, depth) if self.init_layers else ()


def _numbers(flag: str, text: str, first: int, depth: int) -> tuple[int, ...]:
    """Returns the layers in a flag, for a teacher with layers from ``first`` to ``depth``."""
    numbers = range(first, depth + 1) if text == "all" else sorted({int(number) for number in text.split(",")})
    wrong = [number for number in numbers if not first <= number <= depth]
    if wrong:
        raise ConfigError(f"{flag_name(flag)}: layer {wrong[0]}, but the teacher's go from {first} to {depth}")
    return tuple(numbers)
