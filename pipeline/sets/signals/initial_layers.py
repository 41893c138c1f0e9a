"""The signal ``init``: a teacher's embeddings, some of its layers and its pooler, as a student's initial weights."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.sets.record_parts import Count, Part, Sha256
from pipeline.sets.signals.signal import MAX_HEADS, MAX_LAYER, Signal

INIT_FILE = "init.safetensors"
MOST = 2**22
Size = Annotated[int, Field(ge=1, le=MOST)]


class InitShape(Part):
    """The sizes of the BERT with these weights, as in its ``config.json``."""

    hidden_size: Size
    vocab_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=MAX_LAYER)]
    num_attention_heads: Annotated[int, Field(ge=1, le=MAX_HEADS)]
    intermediate_size: Size
    max_position_embeddings: Size
    type_vocab_size: Size
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)]

    def num_bytes(self, num_layers: int) -> int:
        """Returns the size of all numbers in float32, with so many layers."""
        width, inner = self.hidden_size, self.intermediate_size
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2  # with a LayerNorm
        # Four projections of the attention, two of the feed-forward block, each with a bias, and two LayerNorms.
        layer = 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 4 * width
        return 4 * (rows * width + num_layers * layer + (width + 1) * width)


class InitLayers(Signal):
    """A file of float32. Weights have the same names and layer numbers as in the teacher.

    Attributes:
        layers: the layers, from 1.
        shape: sizes.
        bytes: the size of the file.
        sha256: the hash of the file.
    """

    title: ClassVar[str] = "weights of layers"
    task_category: ClassVar[str] = "feature-extraction"
    is_in_rows: ClassVar[bool] = False

    layers: tuple[Annotated[int, Field(ge=1, le=MAX_LAYER)], ...] = Field(min_length=1, max_length=MAX_LAYER)
    shape: InitShape
    bytes: Count
    sha256: Sha256

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if list(self.layers) != sorted(set(self.layers)) or self.layers[-1] > self.shape.num_hidden_layers:
            raise ValueError(f"its layers do not ascend, or go beyond {self.shape.num_hidden_layers}")
        # A record from elsewhere could claim huge sizes for a small file and make a student allocate them.
        if self.bytes < self.shape.num_bytes(len(self.layers)):
            raise ValueError(f"{self.bytes:,} bytes cannot hold layers of these sizes")
        return self

    def __str__(self) -> str:
        return f"weights of layers {', '.join(map(str, self.layers))}"

    def card_section(self) -> str:
        """See `Signal`."""
        layers = ", ".join(map(str, self.layers))
        return f"""
## `{INIT_FILE}`

The teacher's embeddings, layers {layers} of {self.shape.num_hidden_layers} and pooler, as transformers names them. A
student that is a BERT can start from them without the teacher (`distill train-student --embedding bert`).
"""

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        return {"init": f"{self}, {self.bytes:,} bytes"}

    def files(self) -> dict[str, int]:
        """See `Signal`."""
        return {INIT_FILE: self.bytes}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return {INIT_FILE: self.sha256}

    def check_files(self, root: Path) -> None:
        """See `Signal`."""
        # Resolved, because the set's own folder may be a link, but its files may not.
        path = root.resolve() / INIT_FILE
        if not is_plain(path) or path.stat().st_size != self.bytes or sha256(path) != self.sha256:
            raise IntegrityError(f"{path}: missing, or not the weights that belong to this set. Repeat the dump.")
