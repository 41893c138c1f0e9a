"""The signal ``token_vectors``: an encoder's vector of each vocabulary entry by itself, in a separate file.

Shapes: W width.
"""

from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from pipeline.sets.record_parts import FileRecord, Part, TeacherRecord
from pipeline.sets.signals.signal import Signal

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
        """The layer or the encoder of the vectors."""
        return TokenVectorSource(layer=self.layer, encoder=self.encoder)

    def card_section(self) -> str:
        """See `Signal`."""
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
        """See `Signal`."""
        return [{"config_name": "token_vectors", "data_files": VOCABULARY_FILE}]

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        whose = f"layer {self.layer}" + (f" of {self.encoder.name}" if self.encoder else "")
        return {"token vectors": f"{self.file.rows:,} of {self.width} numbers, of {whose}"}

    def files(self) -> dict[str, int]:
        """See `Signal`."""
        return {VOCABULARY_FILE: self.file.bytes}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
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
