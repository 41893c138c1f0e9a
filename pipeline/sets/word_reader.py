"""Reading a set of words: checked, a split at a time. Shapes: N sentences, T tokens of all of them, C logits."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Bools, Floats, Ints, Ragged, ragged
from pipeline.sets.group_reader import GroupedSet
from pipeline.sets.signals.token_logits import token_logits_of
from pipeline.sets.verify_words import rows_problem
from pipeline.tasks.spans import Tallies, word_tallies
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import OUTSIDE
from pipeline.text.word_pieces import Pieces


@dataclass(frozen=True)
class LabelledWords:
    """The sentences of a split.

    Attributes:
        names: of the labels.
        pieces: the sentences in tokens.
        num_words_N: how many words each has.
        gold: the number of each word's label; none of a sentence without gold.
        has_gold_N: which sentences have gold.
        teacher_TC: float32 logits of the teacher.
    """

    names: tuple[str, ...]
    pieces: Pieces
    num_words_N: Ints
    gold: Ragged
    has_gold_N: Bools
    teacher_TC: Floats

    def __len__(self) -> int:
        return len(self.pieces)

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        words: pa.ChunkedArray,
        label: pa.ChunkedArray,
        pieces: Pieces,
        teacher_TC: Floats,
    ) -> "LabelledWords":
        """Puts the columns of sentences together with their tokens and what is said of these."""
        num_words_N = pc.list_value_length(words).to_numpy().astype(np.int64)
        has_gold_N = label.is_valid().to_numpy()
        return cls(names, pieces, num_words_N, ragged(label), has_gold_N, teacher_TC)

    @property
    def gold_T(self) -> Ints:
        """The label of each word on its first token, ``NO_LABEL`` on others and without gold."""
        label_W = np.repeat(np.where(self.has_gold_N, 0, NO_LABEL), self.num_words_N)
        label_W[label_W == 0] = self.gold.flat
        offsets = np.concatenate([[0], np.cumsum(self.num_words_N)])
        return self.pieces.on_first(Ragged(label_W, offsets), NO_LABEL)

    def said(self, logits_TC: Floats) -> Ragged:
        """The number of each word's likeliest label; a word without tokens is outside of every span."""
        return labels_of_words(self.names, self.pieces, self.num_words_N, logits_TC)

    def tallies(self, logits_TC: Floats) -> Tallies:
        """What scores of logits are made of, over the sentences that have gold."""
        known = np.flatnonzero(self.has_gold_N)
        return word_tallies(self.names, self.said(logits_TC).take(known), self.gold.take(known))

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """What is read of the sentences: one list of ids each."""
        return (self.pieces.ids,)


def labels_of_words(names: tuple[str, ...], pieces: Pieces, num_words_N: Ints, logits_TC: Floats) -> Ragged:
    """The number of each word's likeliest label, by the logits of its first token; without tokens it is outside."""
    return pieces.by_word(logits_TC.argmax(axis=1), num_words_N, names.index(OUTSIDE))


@dataclass(frozen=True)
class TokenLabelSet(GroupedSet):
    """An opened set of labelled words."""

    kind: ClassVar = "token_labels"
    advice: ClassVar = "for this a set of a task of labelled words (type: token_labels) is needed"
    group_problem: ClassVar = rows_problem

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
        return LabelledWords.of(target.names, table.column("words"), table.column("label"), pieces, logits_TC)
