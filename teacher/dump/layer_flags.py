"""Flags that choose what is stored of a teacher's layers; free of torch, so that ``--help`` is quick."""

from typing import ClassVar

from pydantic import Field

from pipeline.config import Config, refuse_flags
from pipeline.errors import ConfigError
from pipeline.sets.config import LAYER_CODECS, STATE_CODEC, BlockCodecName
from pipeline.sets.record_parts import LayerRows, LayersName
from pipeline.settings import flag_name

LAYERS = r"^(all|\d{1,3}(,\d{1,3})*)$"
FIRST: dict[LayersName, int] = {"states": 0, "cls": 0, "attention": 1, "values": 1}


class WhichLayers(Config):
    """Which layers, and which of what they say."""

    panel: ClassVar = "What the teacher's layers say"
    states: str | None = Field(
        None, pattern=LAYERS, description="Layers whose states of every token are stored, with commas; 0: embeddings."
    )
    cls: str | None = Field(None, pattern=LAYERS, description="Layers whose state of [CLS] alone is stored; or all.")
    attention: str | None = Field(
        None, pattern=LAYERS, description="Layers whose attention scores, before softmax and mask, are stored."
    )
    values: str | None = Field(
        None, pattern=LAYERS, description="Layers whose values' products with each other are stored (as in MiniLM)."
    )

    @property
    def layers(self) -> dict[LayersName, str]:
        """The layers as given, by signal."""
        return {name: text for name in LAYER_CODECS if (text := getattr(self, name)) is not None}

    def numbers(self, name: LayersName, depth: int) -> tuple[int, ...]:
        """The layers of a signal, ascending, of a teacher with so many.

        Raises:
            ConfigError: if the teacher has not one of them.
        """
        return _numbers(name, self.layers[name], FIRST[name], depth)


class LayerFlags(WhichLayers):
    """Which layers, which of what they say, and how it is stored."""

    panel: ClassVar = WhichLayers.panel
    states_codec: str = Field(
        "float16",
        pattern=STATE_CODEC,
        description="How states are stored: float32, float16, int8, or pca-K, K bytes per token.",
    )
    cls_codec: str = Field("float16", pattern=STATE_CODEC, description="How those of [CLS] are, as --states-codec.")
    attention_codec: BlockCodecName = Field("u8", description="How scores are stored: u8 is a byte per number.")
    values_codec: BlockCodecName = Field("u8", description="How products of values are, as --attention-codec.")
    layers_of: LayerRows = Field(
        "originals", description="Of which rows: the task's own, or variants and unlabelled ones, too."
    )

    init_layers: str | None = Field(
        None,
        pattern=LAYERS,
        description="Layers whose weights the set carries, from 1 on, or all, so that a bert starts from them without "
        "the teacher's folder.",
    )

    def init_numbers(self, depth: int) -> tuple[int, ...]:
        """The layers of ``init_layers``, ascending, of a teacher with so many; none without the flag.

        Raises:
            ConfigError: if the teacher has not one of them.
        """
        return _numbers("init_layers", self.init_layers, 1, depth) if self.init_layers else ()

    def check_layers(self) -> None:
        """Raises ConfigError for flags that do not go together."""
        for name, codec in LAYER_CODECS.items():
            if name not in self.layers:
                refuse_flags(self, {codec}, f"says how layers are stored; give {flag_name(name)} LAYERS, too")
        if not self.layers:
            refuse_flags(self, {"layers_of"}, "says of which rows layers are stored; give --states LAYERS, too")


def _numbers(flag: str, text: str, first: int, depth: int) -> tuple[int, ...]:
    """The layers that a flag names, of a teacher whose layers have the numbers from ``first`` to ``depth``."""
    numbers = range(first, depth + 1) if text == "all" else sorted({int(number) for number in text.split(",")})
    wrong = [number for number in numbers if not first <= number <= depth]
    if wrong:
        raise ConfigError(f"{flag_name(flag)}: layer {wrong[0]}, but the teacher's go from {first} to {depth}")
    return tuple(numbers)
