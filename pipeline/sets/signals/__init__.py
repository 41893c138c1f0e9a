"""Signals, the stored outputs of a teacher for rows and vocabulary: one file per signal, and their record fields."""

from pathlib import Path
from typing import Self

from pipeline.sets.record_parts import Part
from pipeline.sets.signals.layers import Attention, Blocks, Cls, States, Values
from pipeline.sets.signals.rows import Logits, Mlm, TokenLogits, Vectors
from pipeline.sets.signals.side_files import InitLayers, TokenVectors
from pipeline.sets.signals.signal import LayerSignal, Signal


class Signals(Part):
    """The signals of a set, by their names."""

    logits: Logits | None = None
    token_logits: TokenLogits | None = None
    mlm: Mlm | None = None
    token_vectors: TokenVectors | None = None
    vectors: Vectors | None = None
    states: States | None = None
    cls: Cls | None = None
    attention: Attention | None = None
    values: Values | None = None
    init: InitLayers | None = None

    @property
    def stored(self) -> tuple[Signal, ...]:
        return tuple(signal for name in type(self).model_fields if (signal := getattr(self, name)) is not None)

    @property
    def layer_signals(self) -> tuple[LayerSignal, ...]:
        return tuple(signal for signal in self.stored if isinstance(signal, LayerSignal))

    @property
    def num_bytes(self) -> int:
        """Size of their finished files besides the shards of rows, if the record lists them."""
        files = [file.bytes or 0 for signal in self.layer_signals for file in signal.shards]
        files += [self.token_vectors.file.bytes] if self.token_vectors else []
        return sum(files) + (self.init.bytes if self.init else 0)

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of their files besides the shards of rows, if the record lists them."""
        return {path: digest for signal in self.stored for path, digest in signal.hashes().items()}

    def without_token_vectors(self) -> Self:
        return self.model_copy(update={"token_vectors": None})

    def row_signals(self) -> Self:
        return type(self)(**{name: signal for name, signal in self if signal is not None and signal.is_in_rows})

    def measured(self, root: Path) -> Self:
        """Returns the signals of a complete set in ``root``."""
        # A new object instead of model_copy, because pydantic validates only when an object is built.
        return type(self)(**{name: signal.measured(root) for name, signal in self if signal is not None})


__all__ = [
    "Attention",
    "Blocks",
    "Cls",
    "InitLayers",
    "LayerSignal",
    "Logits",
    "Mlm",
    "Signal",
    "Signals",
    "States",
    "TokenLogits",
    "TokenVectors",
    "Values",
    "Vectors",
]
