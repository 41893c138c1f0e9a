"""The kinds of rows that a set may have: their columns, before those of the signals, and what a record says of them."""

from collections.abc import Callable, Set
from dataclasses import dataclass

import pyarrow as pa

from pipeline.sets.record_parts import KindName
from pipeline.tasks.target import LABEL_LISTS

TEXT_HASH_BYTES = 16
TEXT_COLUMNS = ("sentence1", "sentence2", "ids1", "ids2")
MAX_UINT16 = 2**16


def id_type(vocabulary_size: int) -> pa.DataType:
    """The type that ids are stored in."""
    return pa.uint16() if vocabulary_size <= MAX_UINT16 else pa.uint32()


def example_columns(vocabulary_size: int, has_text: bool = True) -> list[pa.Field]:
    """The columns of a task's rows. Without text there are no ids either: a tokenizer turns them back into it."""
    ids = pa.list_(id_type(vocabulary_size))
    columns = [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("variant", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sentence1", pa.string()),
        pa.field("sentence2", pa.string()),
        pa.field("ids1", ids, nullable=False),
        pa.field("ids2", ids),
        pa.field("text_hash", pa.binary(TEXT_HASH_BYTES), nullable=False),
        pa.field("label", pa.int32()),
        pa.field("score", pa.float32()),
    ]
    return [column for column in columns if has_text or column.name not in TEXT_COLUMNS]


def with_label_lists(columns: pa.Schema) -> pa.Schema:
    """The columns of a multi-label task's rows, whose labels are a list."""
    return columns.set(columns.get_field_index("label"), pa.field("label", LABEL_LISTS))


def token_columns(vocabulary_size: int, has_text: bool = True) -> list[pa.Field]:
    """The columns of masked copies of sequences, which are never without their text."""
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


def sentence_columns(vocabulary_size: int, has_text: bool = True) -> list[pa.Field]:
    """The columns of sentences as their ids, which are never without them."""
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("piece", pa.int32(), nullable=False),
        pa.field("ids", pa.list_(id_type(vocabulary_size)), nullable=False),
    ]


def word_columns(vocabulary_size: int, has_text: bool = True) -> list[pa.Field]:
    """The columns of sentences of labelled words, which are never without their words."""
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("words", pa.list_(pa.string()), nullable=False),
        pa.field("ids", pa.list_(id_type(vocabulary_size)), nullable=False),
        pa.field("word_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("text_hash", pa.binary(TEXT_HASH_BYTES), nullable=False),
        pa.field("label", LABEL_LISTS),
    ]


@dataclass(frozen=True)
class RowsKind:
    """What a set says and stores of a kind of rows.

    Attributes:
        columns: makes their columns of the size of the vocabulary, and of whether there is text.
        needs: the optional parts of a record that such rows have.
        needs_one: of which they have one.
        may_have: those that they may have besides.
        may_lack_text: whether a set of them may do without its text.
    """

    columns: Callable[[int, bool], list[pa.Field]]
    needs: Set[str] = frozenset()
    needs_one: Set[str] = frozenset()
    may_have: Set[str] = frozenset()
    may_lack_text: bool = False


ROW_KINDS: dict[KindName, RowsKind] = {
    "examples": RowsKind(
        example_columns, {"task"}, may_have={"augmentation", "unlabelled", "windows"}, may_lack_text=True
    ),
    "masked_words": RowsKind(token_columns, {"corpus", "masking"}),
    "sentences": RowsKind(sentence_columns, needs_one={"task", "corpus"}),
    "token_labels": RowsKind(word_columns, {"task"}),
}
OPTIONAL_PARTS: Set[str] = {
    part for kind in ROW_KINDS.values() for part in (*kind.needs, *kind.needs_one, *kind.may_have)
}
