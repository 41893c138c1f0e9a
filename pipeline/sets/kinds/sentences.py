"""Sentences of a task or a corpus: a row per sentence, its ids and its vector.

Shapes: R rows, H width of a vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.arrays import Floats, Ints, Ragged, ragged
from pipeline.sets.codecs.vectors import Basis
from pipeline.sets.files import Statistics
from pipeline.sets.open import GroupedSet, load_set_tokenizer
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.row_kind import RowKind, ids_problem, signals_problem
from pipeline.sets.signals import Vectors
from pipeline.tasks.task import TRAIN
from pipeline.text.vocabulary import MOST_LEARNED

VECTOR_LEAF = "vector.list.element"
SENTENCES_PER_GROUP = 4096  # encoded, written and later read together


@dataclass(frozen=True)
class Sentences:
    """Sentences without their vectors.

    Attributes:
        source_row_R: the document or the task's row of each sentence.
        piece_R: the number of the sentence in it. A pair has 0 and 1.
        ids: the tokens, without special ones.
    """

    source_row_R: Ints
    piece_R: Ints
    ids: Ragged

    def __len__(self) -> int:
        return len(self.source_row_R)

    def take(self, rows: Ints) -> "Sentences":
        """Returns the sentences with these numbers, in the same order."""
        return Sentences(self.source_row_R[rows], self.piece_R[rows], self.ids.take(rows))


class SentencesKind(RowKind):
    """Sentences as token ids. They cannot be shared without these."""

    name = "sentences"
    page_title = "set of sentences"

    def encodings(self, record: SetRecord) -> dict[str, Any]:
        # Parquet has no 8-bit type and stores int8 in four bytes. A dictionary's indices stay at one byte.
        is_small = record.arrow_schema().field("vector").type.value_type == pa.int8()
        return {
            "use_dictionary": ["split", *([VECTOR_LEAF] if is_small else [])],
            "use_byte_stream_split": ["ids.list.element", *([] if is_small else [VECTOR_LEAF])],
            "write_statistics": ["split", "source_row", "piece"],
        }

    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        return ids_problem(record, "ids", rows.column("ids").combine_chunks()) or signals_problem(record, rows)

    def key_problem(self, record: SetRecord, shard: Shard, rows: pa.Table, last: tuple[int, ...]) -> str | None:
        """A row of a task has sentence 0, and a pair also sentence 1."""
        problem, most = super().key_problem(record, shard, rows, last), int(record.is_pair)
        piece_R = rows.column("piece").to_numpy()
        if not problem and record.task is not None and ((piece_R < 0) | (piece_R > most)).any():
            return f"a row of the task has a sentence beyond number {most}"
        return problem

    def summary(self, record: SetRecord) -> str:
        return (
            f"Vectors of {record.teacher.name} for the sentences of {record.dataset_name}: {record.num_rows:,} vectors."
        )

    def end_problem(self, record: SetRecord, shard: Shard, num_rows: int) -> str | None:
        # Keys ascend and pieces are in range, so the right number means that no sentence is missing. A document of a
        # corpus may have any number of sentences.
        expected = (shard.stop - shard.start) * (1 + record.is_pair)
        if record.task is not None and num_rows != expected:
            return f"{num_rows:,} sentences, but the source rows {shard.start:,} to {shard.stop:,} have {expected:,}"
        return None


@dataclass(frozen=True)
class SentenceSet(GroupedSet):
    """An opened set of sentences with their vectors."""

    row_kind: ClassVar = SentencesKind()
    advice: ClassVar = "a set of `distill teacher-dump --signal vectors` is needed here"

    @property
    def vectors(self) -> Vectors:
        signal = self.record.signals.vectors
        assert signal is not None, "a set of sentences has vectors"
        return signal

    @cached_property
    def basis(self) -> Basis | None:
        """The basis, if the codec needs one.

        Raises:
            IntegrityError: if the file is missing or was changed.
        """
        return self.vectors.read_basis(self.root)

    def decode(self, rows: pa.Table) -> Floats:
        """The vectors of some rows, [R, H] of float32."""
        return self.vectors.codec.decode(rows, self.basis)

    def sequences(self, rows: pa.Table) -> Ragged:
        """The ids of some rows in the tokens of the set's vocabulary."""
        ids = ragged(rows.column("ids"))
        if self.vocabulary is not None:
            [ids] = self.vocabulary.reader.read(self._texts(ids), None, self.record.max_seq_length)
        return ids

    def training_texts(self) -> list[str]:
        groups = [group for group, _ in self.groups(TRAIN)][: MOST_LEARNED // SENTENCES_PER_GROUP]
        self.check_shards(list({shard.path: shard for shard, _ in groups}.values()))
        return [text for group in groups for text in self._texts(ragged(self.read_group(group).column("ids")))]

    def _texts(self, ids: Ragged) -> list[str]:
        """The texts are not stored, but ids describe what the teacher read of them."""
        texts: list[str] = load_set_tokenizer(self.root, self.record.tokenizer).decode_batch(ids.lists())
        return texts

    def scores(self) -> Scores:
        """Per split, from the footers: sentences, tokens, the lost share of the vectors' squares, and bytes."""
        scores: Scores = {}
        for split, total in self.totals():
            if total["sentences"]:
                scores[split] = {
                    "sentences": total["sentences"],
                    "tokens": total["tokens"],
                    # All-zero vectors would otherwise divide by zero.
                    "squared_error": total["errors"] / max(total["squares"], 1e-12),
                    "bytes_per_sentence": total["bytes"] / total["sentences"],
                }
        return scores


def sentences_table(record: SetRecord, split: str, rows: Sentences, vectors: Mapping[str, pa.Array]) -> pa.Table:
    """Puts sentences and the codec's columns of their vectors together."""
    schema = record.arrow_schema()
    columns = {
        "split": pa.repeat(pa.scalar(split), len(rows)),
        "source_row": pa.array(rows.source_row_R),
        "piece": pa.array(rows.piece_R, pa.int32()),
        "ids": rows.ids.column(schema.field("ids").type.value_type),
        **vectors,
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def no_vector_statistics() -> Statistics:
    """The sums of `add_statistics` before the first vector, 0 each."""
    return dict.fromkeys(("sentences", "tokens", "squares", "errors"), 0.0)


def add_statistics(statistics: Statistics, rows: Sentences, said_RH: Floats, kept_RH: Floats) -> None:
    """Adds up sentences, their tokens, the squares of their vectors and the squared errors of the stored vectors."""
    statistics["sentences"] += len(rows)
    statistics["tokens"] += len(rows.ids.flat)
    statistics["squares"] += float((said_RH.astype("float64") ** 2).sum())
    statistics["errors"] += float(((said_RH.astype("float64") - kept_RH) ** 2).sum())
