"""The kinds of rows, and the columns, signals and parts that a set of each may have: what `SetRecord` is checked by.

How rows are checked, queried and described is a `RowKind` in a file of `pipeline.sets.kinds`. Those files import the
record, and the record imports only this table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipeline.arrays import id_type
from pipeline.sources.gold import GOLD_TYPE, LABEL_LISTS

# 128 bits: among 10^12 texts a collision has a probability of about 10^-15.
TEXT_HASH_BYTES = 16
TEXT_COLUMNS = ("sentence1", "sentence2", "ids1", "ids2")


@dataclass(frozen=True)
class RowFormat:
    """What a record may and must contain for a kind of rows.

    Attributes:
        keys: the columns by which rows are joined. The first two are ``split`` and ``source_row``.
        columns: returns the columns of the rows, without those of the signals, from the size of the vocabulary and the
            type of gold.
        signals: the fields of `Signals` that its sets may have.
        needs: the optional parts of a record that its sets have.
        needs_one: parts of which its sets have exactly one.
        may_have: further parts that its sets may have.
        may_lack_text: whether a set can be shared without its text.
    """

    keys: tuple[str, ...]
    columns: Callable[[int, pa.DataType], list[pa.Field]]
    signals: frozenset[str]
    needs: frozenset[str] = frozenset()
    needs_one: frozenset[str] = frozenset()
    may_have: frozenset[str] = frozenset()
    may_lack_text: bool = False

    @property
    def parts(self) -> frozenset[str]:
        """The optional parts of a record that a set of this kind may have."""
        return self.needs | self.needs_one | self.may_have


def example_columns(vocabulary_size: int, gold_type: pa.DataType = GOLD_TYPE) -> list[pa.Field]:
    """Returns the columns of examples with their text. The type of ``label`` depends on `TargetType`."""
    ids = pa.list_(id_type(vocabulary_size))
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("variant", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sentence1", pa.string()),
        pa.field("sentence2", pa.string()),
        pa.field("ids1", ids, nullable=False),
        pa.field("ids2", ids),
        pa.field("text_hash", pa.binary(TEXT_HASH_BYTES), nullable=False),
        pa.field("label", gold_type),
        pa.field("score", pa.float32()),
    ]


def masked_word_columns(vocabulary_size: int, gold_type: pa.DataType | None = None) -> list[pa.Field]:
    """Returns the columns of masked words, without those of their codec."""
    ids = pa.list_(id_type(vocabulary_size))
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("copy", pa.int32(), nullable=False),
        pa.field("ids", ids, nullable=False),
        pa.field("positions", pa.list_(pa.uint16()), nullable=False),
        pa.field("targets", ids, nullable=False),
    ]


def _sentences(vocabulary_size: int, gold_type: pa.DataType) -> list[pa.Field]:
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("ids", pa.list_(id_type(vocabulary_size)), nullable=False),
    ]


def _token_labels(vocabulary_size: int, gold_type: pa.DataType) -> list[pa.Field]:
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("ids", pa.list_(id_type(vocabulary_size)), nullable=False),
        pa.field("word_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("text_hash", pa.binary(TEXT_HASH_BYTES), nullable=False),
        pa.field("label", LABEL_LISTS),
    ]


FORMATS: dict[str, RowFormat] = {
    "examples": RowFormat(
        keys=("split", "source_row", "variant"),
        columns=example_columns,
        signals=frozenset({"logits", "token_vectors", "states", "cls", "attention", "values", "init"}),
        needs=frozenset({"task"}),
        may_have=frozenset({"augmentation", "unlabelled", "windows"}),
        may_lack_text=True,
    ),
    "masked_words": RowFormat(
        keys=("split", "source_row", "piece", "copy"),
        columns=masked_word_columns,
        signals=frozenset({"mlm"}),
        needs=frozenset({"corpus", "masking"}),
    ),
    "sentences": RowFormat(
        keys=("split", "source_row", "piece"),
        columns=_sentences,
        signals=frozenset({"vectors", "token_vectors"}),
        needs_one=frozenset({"task", "corpus"}),
    ),
    "token_labels": RowFormat(
        keys=("split", "source_row"),
        columns=_token_labels,
        signals=frozenset({"token_logits", "token_vectors"}),
        needs=frozenset({"task"}),
    ),
}
