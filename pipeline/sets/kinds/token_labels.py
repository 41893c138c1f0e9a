"""Labelled words: a row per sentence, its words, its tokens, its gold, and the logits of each token.

Shapes: N sentences, T tokens of all of them, C logits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Bools, Floats, Ints, Ragged, ragged
from pipeline.sets.open import GroupedSet
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.row_kind import RowKind, View, hash_of_texts, ids_problem, signals_problem
from pipeline.sets.signals.rows import token_logits_of
from pipeline.sources.source import HASHED_COLUMNS
from pipeline.sql.database import words_view_name
from pipeline.sql.read_only_query import parquet
from pipeline.tasks.metrics import confusion, confusion_by_name
from pipeline.tasks.spans import Tallies, word_scores, word_tallies
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import OUTSIDE, TRAIN
from pipeline.text.word_pieces import Pieces, read_pieces

if TYPE_CHECKING:
    from pipeline.text.text_to_ids import TextReader

ROWS_AT_ONCE = 4096
MAX_TEXT_BYTES = 2**28  # of the words in one batch

# Columns: the key, `word` (its number), `text`, `label`, and the `logits` of the word's first token. A word without
# tokens has null logits.
WORDS_VIEW = """create view "{name}" as
        select split, source_row, word, words[word + 1] as text, label[word + 1] as label,
            logits[list_position(word_ids, word)] as logits
        from (select *, unnest(range(len(words)))::int as word from {files})
    """


@dataclass(frozen=True)
class LabelledWords:
    """The sentences of a split.

    Attributes:
        names: of the labels.
        pieces: the sentences in tokens.
        num_words_N: the number of words of each sentence.
        gold: the number of each word's label. Empty for a sentence without gold.
        has_gold_N: which sentences have gold.
        teacher_TC: float32 logits of the teacher. Sentences of a file have no logits: [0, C].
        group_N: int64, the group of each sentence with gold. None: every sentence is a group of its own.
    """

    names: tuple[str, ...]
    pieces: Pieces
    num_words_N: Ints
    gold: Ragged
    has_gold_N: Bools
    teacher_TC: Floats
    group_N: Ints | None = None

    def __len__(self) -> int:
        return len(self.pieces)

    @classmethod
    def of(
        cls, names: tuple[str, ...], words: pa.ChunkedArray, label: pa.ChunkedArray, pieces: Pieces, teacher_TC: Floats
    ) -> "LabelledWords":
        """Puts the columns of sentences together with their tokens and the outputs for these."""
        num_words_N = pc.list_value_length(words).to_numpy().astype(np.int64)
        has_gold_N = label.is_valid().to_numpy()
        return cls(names, pieces, num_words_N, ragged(label), has_gold_N, teacher_TC)

    def without_teacher(self) -> Self:
        """Returns the sentences without logits."""
        return replace(self, teacher_TC=self.teacher_TC[:0])

    @property
    def gold_T(self) -> Ints:
        """The label of each word on its first token, ``NO_LABEL`` on others and without gold."""
        # Words of sentences with gold are marked by 0 first, and then overwritten by their labels in order.
        label_W = np.repeat(np.where(self.has_gold_N, 0, NO_LABEL), self.num_words_N)
        label_W[label_W == 0] = self.gold.flat
        offsets = np.concatenate([[0], np.cumsum(self.num_words_N)])
        return self.pieces.on_first(Ragged(label_W, offsets), NO_LABEL)

    def predicted(self, logits_TC: Floats) -> Ragged:
        """Returns the number of each word's most likely label. A word without tokens is outside every span."""
        return labels_of_words(self.names, self.pieces, self.num_words_N, logits_TC)

    def tallies(self, logits_TC: Floats) -> Tallies:
        """Returns gold and predictions for scores, over the sentences with gold."""
        known = np.flatnonzero(self.has_gold_N)
        return word_tallies(self.names, self.predicted(logits_TC).take(known), self.gold.take(known))

    def confusion(self, logits_TC: Floats) -> dict[str, dict[str, int]]:
        """How many words of each gold label have each prediction, over the sentences that have gold."""
        known = np.flatnonzero(self.has_gold_N)
        predicted, gold = self.predicted(logits_TC).take(known).flat, self.gold.take(known).flat
        return confusion_by_name(self.names, confusion(gold, predicted, len(self.names)))

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """Returns the input of each sentence: one list of ids."""
        return (self.pieces.ids,)

    @property
    def weight_N(self) -> Floats:
        return np.ones(len(self), dtype=np.float32)


def labels_of_words(names: tuple[str, ...], pieces: Pieces, num_words_N: Ints, logits_TC: Floats) -> Ragged:
    """Returns the number of each word's most likely label, by its first token.

    A word without tokens is outside every span.
    """
    return pieces.by_word(logits_TC.argmax(axis=1), num_words_N, names.index(OUTSIDE))


class TokenLabelsKind(RowKind):
    """Sentences of labelled words. They cannot be shared without their words."""

    name = "token_labels"
    can_be_truncated = True
    page_title = "set of words"
    sql_templates = (WORDS_VIEW,)

    def encodings(self, record: SetRecord) -> dict[str, Any]:
        """Logits are encoded byte by byte, as those of examples."""
        return {
            "use_dictionary": ["split", "words.list.element", "word_ids.list.element", "label.list.element"],
            "use_byte_stream_split": ["ids.list.element", "logits.list.element.list.element"],
            "write_statistics": ["split", "source_row"],
        }

    def views(self, root: Path, record: SetRecord) -> list[View]:
        """A second view has a row for each word."""
        name, files = words_view_name(root.name), parquet([root / shard.path for shard in record.shards])
        return [*super().views(root, record), View(name, WORDS_VIEW.format(name=name, files=files))]

    def summary(self, record: SetRecord) -> str:
        return (
            f"Predictions of {record.teacher.name} for the words of {record.dataset_name}: "
            f"{record.num_rows:,} sentences."
        )

    def is_hashed(self, record: SetRecord) -> bool:
        return True

    def hashed_rows(self, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        # Source rows have two more columns, which are null for labelled words.
        nothing = pa.nulls(rows.num_rows)
        columns = [rows.column("words").combine_chunks(), nothing, rows.column("label").combine_chunks(), nothing]
        yield pa.RecordBatch.from_arrays(columns, names=HASHED_COLUMNS)

    def end_problem(self, record: SetRecord, shard: Shard, num_rows: int) -> str | None:
        end = shard.start + num_rows
        return None if end == shard.stop else f"it ends at source row {end:,}, and not at {shard.stop:,}"

    def file_problem(self, path: Path) -> str | None:
        """One word may be so long, or so frequent, that the words fill the memory. A dictionary hides that."""
        with pq.ParquetFile(path, read_dictionary=["words.list.element"]) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=["words.list.element"]):
                words = batch.column(0).flatten()
                # pyarrow returns plain strings for pages without a dictionary, whose bytes the file's size limits.
                if not pa.types.is_dictionary(words.type):
                    continue
                num_bytes = pc.sum(pc.binary_length(words.dictionary).take(words.indices)).as_py() or 0
                if num_bytes > MAX_TEXT_BYTES:
                    return f"the words of {batch.num_rows:,} rows have more than {MAX_TEXT_BYTES:,} bytes"
        return None

    def batches(self, record: SetRecord, path: Path) -> Iterator[tuple[str, pa.Table]]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                yield "", pa.Table.from_batches([batch])

    def key_problem(self, record: SetRecord, shard: Shard, rows: pa.Table, last: tuple[int, ...]) -> str | None:
        """A shard has every source row of its range."""
        # Stricter than ascending keys: every sentence is stored exactly once, even one without tokens.
        start = max(last[0] + 1, shard.start)
        if not np.array_equal(rows.column("source_row").to_numpy(), np.arange(start, start + rows.num_rows)):
            return f"its rows are not the source rows {shard.start:,} to {shard.stop:,}, each once and in order"
        return None

    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        columns = {name: rows.column(name).combine_chunks() for name in ("words", "ids", "word_ids", "label")}
        for name, column in columns.items():
            if (column.null_count and name != "label") or column.flatten().null_count:
                return f"{name} is null somewhere"
        words_N = pc.list_value_length(columns["words"])
        return (
            ids_problem(record, "ids", columns["ids"])
            or _word_ids_problem(columns["ids"], columns["word_ids"], words_N)
            or _label_problem(record, columns["label"], words_N)
            or signals_problem(record, rows)
            or _hash_problem(record, rows)
        )

    def num_truncated(self, path: Path, reader: "TextReader", room: int, by_windows: bool) -> int:
        """Labelled words are never read by windows: their record does not allow it."""
        rows = pq.read_table(path, columns=["ids", "words"], partitioning=None)
        full = rows.filter(pc.greater_equal(pc.list_value_length(rows.column("ids")), room))
        return int((read_pieces(reader, full.column("words").to_pylist()).ids.lengths > room).sum())


@dataclass(frozen=True)
class TokenLabelSet(GroupedSet):
    """An opened set of labelled words."""

    row_kind: ClassVar = TokenLabelsKind()
    advice: ClassVar = "a set of a task of labelled words (type: token_labels) is needed here"

    def read(self, split: str) -> LabelledWords:
        """The sentences of a split, in the order of their source rows.

        Raises:
            ConfigError: if there is no such split.
            IntegrityError: if a file is missing or was changed, or its rows cannot be those of a set.
        """
        table = pa.concat_tables([part for shard in self.shards(split) for part in self.read_shard(shard)])
        pieces = Pieces(ragged(table.column("ids")), ragged(table.column("word_ids")))
        target = self.record.target
        logits_TC = token_logits_of(table, target.num_logits)
        if self.vocabulary is not None:
            words = table.column("words").to_pylist()
            pieces, token_T = _other_pieces(self.vocabulary.reader, words, pieces, self.record.max_seq_length)
            logits_TC = logits_TC[token_T]
        return LabelledWords.of(target.names, table.column("words"), table.column("label"), pieces, logits_TC)

    def training_texts(self) -> list[str]:
        shards = [part for shard in self.shards(TRAIN) for part in self.read_shard(shard)]
        return [" ".join(words) for part in shards for words in part.column("words").to_pylist()]

    def scores(self) -> Scores:
        splits = {split: self.read(split) for split in self.splits}
        return {
            split: word_scores(self.record.metrics, rows.tallies(rows.teacher_TC)) for split, rows in splits.items()
        }


def _other_pieces(
    reader: "TextReader", words: list[list[str]], pieces: Pieces, max_seq_length: int
) -> tuple[Pieces, Ints]:
    """Returns sentences in the tokens of a student, and for each token the teacher's first one of the same word.

    Words without a token of the teacher are left out, such as those that were truncated.
    """
    own, num_words_N = read_pieces(reader, words, max_seq_length), np.array([len(one) for one in words], np.int64)
    first_W = pieces.by_word(np.arange(len(pieces.ids.flat)), num_words_N, -1)
    token_T = first_W.flat[own.place_T(first_W.offsets)]
    return own.where(token_T >= 0), token_T[token_T >= 0]


def _word_ids_problem(ids: pa.Array, word_ids: pa.Array, words_N: pa.Array) -> str | None:
    if not pc.list_value_length(word_ids).equals(pc.list_value_length(ids)):
        return "a sentence has different numbers of word_ids and ids"
    number_T, row_T = word_ids.flatten().to_numpy(), pc.list_parent_indices(word_ids).to_numpy()
    if ((number_T < 0) | (number_T >= words_N.to_numpy()[row_T])).any():
        return "a token belongs to a word that is not in its sentence"
    # Tokens of a word are neighbours and words are in order: `on_first` finds first tokens by a change of number.
    if ((np.diff(number_T) < 0) & (np.diff(row_T) == 0)).any():
        return "the words of a sentence's tokens do not ascend"
    return None


def _label_problem(record: SetRecord, label: pa.Array, words_N: pa.Array) -> str | None:
    if pc.any(pc.not_equal(pc.list_value_length(label), words_N)).as_py():
        return "a sentence does not have one label per word"
    ends = pc.min_max(label.flatten()).as_py()
    num_labels = record.target.num_logits
    if ends["max"] is not None and not 0 <= ends["min"] <= ends["max"] < num_labels:
        return f"has labels from {ends['min']} to {ends['max']}, but the task has {num_labels} labels"
    return None


def _hash_problem(record: SetRecord, rows: pa.Table) -> str | None:
    expected = words_hashes(record, rows.column("words").to_pylist())
    wrong = [a != b for a, b in zip(expected, rows.column("text_hash").to_pylist(), strict=True)]
    if any(wrong):
        return f"text_hash of source row {rows.column('source_row')[wrong.index(True)]} does not belong to its words"
    return None


def words_table(record: SetRecord, shard: Shard, rows: pa.Table, pieces: Pieces, logits_TC: Floats) -> pa.Table:
    """The table of a shard: sentences, their tokens and the logits of these, float32 in the task's label order."""
    schema = record.arrow_schema()
    words = rows.column("sentence1")
    each = pa.FixedSizeListArray.from_arrays(pa.array(logits_TC.ravel()), logits_TC.shape[1])
    columns = {
        "split": pa.repeat(pa.scalar(shard.split), rows.num_rows),
        "source_row": rows.column("source_row"),
        "words": words,
        "ids": pieces.ids.column(schema.field("ids").type.value_type),
        "word_ids": pieces.word_ids.column(pa.int32()),
        "text_hash": pa.array(words_hashes(record, words.to_pylist()), schema.field("text_hash").type),
        "label": rows.column("label"),
        "logits": pa.ListArray.from_arrays(pa.array(pieces.ids.offsets, pa.int32()), each),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def words_hashes(record: SetRecord, sentences: Sequence[Sequence[str]]) -> list[bytes]:
    """The key of each sentence's words under the set's tokenizer."""
    return [hash_of_texts(record.tokenizer.sha256, *words) for words in sentences]
