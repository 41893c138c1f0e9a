"""Reading a set of sentences: checked, a row group at a time. Shapes: R rows, H width of a vector."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.sets.group_reader import GroupedSet
from pipeline.sets.record import Scores
from pipeline.sets.signals import Vectors
from pipeline.sets.vector_basis import Basis
from pipeline.sets.verify_sentences import group_problem


@dataclass(frozen=True)
class SentenceSet(GroupedSet):
    """An opened set of sentences with their vectors."""

    kind: ClassVar = "sentences"
    advice: ClassVar = "for this a set of `distill teacher-dump --signal vectors` is needed"
    group_problem: ClassVar = group_problem

    @property
    def vectors(self) -> Vectors:
        """How the vectors are stored."""
        signal = self.record.signals.vectors
        assert signal is not None, "a set of sentences has vectors"
        return signal

    @cached_property
    def basis(self) -> Basis | None:
        """The basis, where the codec needs one.

        Raises:
            IntegrityError: if the file is missing or was changed.
        """
        return self.vectors.read_basis(self.root)

    def decode(self, rows: pa.Table) -> Floats:
        """The vectors of some rows, [R, H] of float32."""
        return self.vectors.codec.decode(rows, self.basis)

    def scores(self) -> Scores:
        """Per split, from the footers: sentences, tokens, what share of the vectors' squares is lost, and bytes."""
        scores: Scores = {}
        for split, total in self.totals():
            if total["sentences"]:
                scores[split] = {
                    "sentences": total["sentences"],
                    "tokens": total["tokens"],
                    "squared_error": total["errors"] / max(total["squares"], 1e-12),
                    "bytes_per_sentence": total["bytes"] / total["sentences"],
                }
        return scores
