"""The signals in one file each: a vector of every vocabulary entry, and the weights of layers.

Shapes: W width.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.errors import IntegrityError
from pipeline.sets.record_parts import Count, FileRecord, Part, Sha256, TeacherRecord
from pipeline.sets.signals.signal import MAX_HEADS, MAX_LAYER, Signal, own_file

VOCABULARY_FILE = "vocabulary/token_vectors.parquet"
MAX_WIDTH = 2**14
# The layer of a teacher whose hidden states are stored.
EMBEDDINGS = 0


def columns_of(width: int) -> pa.Schema:
    """Returns the columns of the file of vectors of this width. Counts are null without the text of the rows."""
    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("token", pa.string()),
            pa.field("count", pa.int64()),
            pa.field("vector", pa.list_(pa.uint16(), width), nullable=False),
        ]
    )


class TokenVectorSource(Part):
    """The layer or encoder that token vectors come from.

    Attributes:
        layer: the layer whose hidden state of the entry is stored, between the special tokens of a sentence. 0 is the
            embeddings.
        encoder: the encoder whose mean over the entry and the special tokens is stored. It differs from a teacher of
            logits, but is the teacher of a set of sentences.
    """

    layer: int = Field(EMBEDDINGS, ge=0)
    encoder: TeacherRecord | None = None


class TokenVectors(Signal):
    """A vector for each id of the tokenizer, and its count in the training rows.

    Attributes:
        width: W.
        layer: the layer of the hidden states. See `TokenVectorSource`.
        encoder: the encoder of the vectors, if it is not the teacher of the logits. See `TokenVectorSource`.
        file: its file, with a row per id.
    """

    title: ClassVar[str] = "token vectors"
    task_category: ClassVar[str] = "feature-extraction"
    is_in_rows: ClassVar[bool] = False

    width: int = Field(ge=1, le=MAX_WIDTH)
    layer: int = Field(ge=0)
    encoder: TeacherRecord | None = None
    file: FileRecord

    def __str__(self) -> str:
        return f"token vectors of {self.width}"

    @property
    def speaker(self) -> TokenVectorSource:
        return TokenVectorSource(layer=self.layer, encoder=self.encoder)

    def card_section(self) -> str:
        return f"""
## Columns of `{VOCABULARY_FILE}`

{self._origin()} A student can start from it.

| column | meaning |
|---|---|
| `id`, `token` | the entry, as in `tokenizer.json` |
| `count` | how often the original training rows use it; null in a set of examples without text |
| `vector` | {self.width} numbers, bits of float16 |
"""

    def configs(self) -> list[dict[str, Any]]:
        return [{"config_name": "token_vectors", "data_files": VOCABULARY_FILE}]

    def facts(self) -> dict[str, Any]:
        whose = f"layer {self.layer}" + (f" of {self.encoder.name}" if self.encoder else "")
        return {"token vectors": f"{self.file.rows:,} of {self.width} numbers, of {whose}"}

    def files(self) -> dict[str, int]:
        return {VOCABULARY_FILE: self.file.bytes}

    def hashes(self) -> dict[str, str]:
        return {VOCABULARY_FILE: self.file.sha256}

    def _origin(self) -> str:
        """What the numbers are, as a sentence of the card."""
        place = "of each vocabulary entry alone, between the special tokens of a sentence"
        if self.encoder is not None:
            return (
                f"The mean over the last states (layer {self.layer}) {place}, which are part of the mean, of the\n"
                f"encoder {self.encoder.name}."
            )
        return f"The teacher's hidden state {place}, in layer\n{self.layer} (0: the embeddings)."


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
        layers = ", ".join(map(str, self.layers))
        return f"""
## `{INIT_FILE}`

The teacher's embeddings, layers {layers} of {self.shape.num_hidden_layers} and pooler, as transformers names them. A
student that is a BERT can start from them without the teacher (`distill train-student --embedding bert`).
"""

    def facts(self) -> dict[str, Any]:
        return {"init": f"{self}, {self.bytes:,} bytes"}

    def files(self) -> dict[str, int]:
        return {INIT_FILE: self.bytes}

    def hashes(self) -> dict[str, str]:
        return {INIT_FILE: self.sha256}

    def check_files(self, root: Path) -> None:
        path = own_file(root, INIT_FILE, self.sha256, "weights of layers")
        if path.stat().st_size != self.bytes:
            raise IntegrityError(f"{path}: {path.stat().st_size:,} bytes, but distill.json has {self.bytes:,}")
