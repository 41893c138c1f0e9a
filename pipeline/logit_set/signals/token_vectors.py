"""``token_vectors``: what a teacher's encoder says of each vocabulary entry alone, in a file of its own.

Shapes: W width.
"""

from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from pipeline.logit_set.record_parts import FileRecord, RowsName
from pipeline.logit_set.signals.signal import Signal

VOCABULARY_FILE = "vocabulary/token_vectors.parquet"
MAX_WIDTH = 2**14


class TokenVectors(Signal):
    """A vector for each id of the tokenizer, and how often the training rows use it.

    Attributes:
        width: W.
        layer: whose hidden state of the entry it is, between the special tokens of a sentence; 0 is the embeddings'.
        file: its file, with a row per id.
    """

    rows: ClassVar[RowsName] = "examples"
    title: ClassVar[str] = "token vectors"
    task_category: ClassVar[str] = "feature-extraction"
    is_of_rows: ClassVar[bool] = False

    width: int = Field(ge=1, le=MAX_WIDTH)
    layer: int = Field(ge=0)
    file: FileRecord

    def __str__(self) -> str:
        return f"token vectors of {self.width}"

    def arrow_schema(self) -> pa.Schema:
        """The columns of its file; no count is there without the text of the rows."""
        return pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("token", pa.string()),
                pa.field("count", pa.int64()),
                pa.field("vector", pa.list_(pa.uint16(), self.width), nullable=False),
            ]
        )

    def card_section(self) -> str:
        """See `Signal`."""
        return f"""
## Columns of `{VOCABULARY_FILE}`

The teacher's hidden state of each vocabulary entry alone, between the special tokens of a sentence, in layer
{self.layer} (0: the embeddings). A student can start from it.

| column | meaning |
|---|---|
| `id`, `token` | the entry, as in `tokenizer.json` |
| `count` | how often the original training rows use it; null in a set without text |
| `vector` | {self.width} numbers, bits of float16 |
"""

    def configs(self) -> list[dict[str, Any]]:
        """See `Signal`."""
        return [{"config_name": "token_vectors", "data_files": VOCABULARY_FILE}]

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        return {"token vectors": f"{self.file.rows:,} of {self.width} numbers, of layer {self.layer}"}

    def files(self) -> dict[str, int]:
        """See `Signal`."""
        return {VOCABULARY_FILE: self.file.bytes}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return {VOCABULARY_FILE: self.file.sha256}
