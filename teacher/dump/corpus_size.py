"""How large the set of a whole corpus will be, from documents spread over it."""

from dataclasses import dataclass

from pipeline.sets.codecs import Codec
from teacher.corpus.masking import MaskingPlan, mask
from teacher.corpus.text import SPLITS, Text, nothing_to_mask
from teacher.models.masked_lm import MlmTokenizer

BYTES_PER_TOKEN = 2.25  # of the masked ids, positions and targets, measured on Wikipedia


@dataclass(frozen=True)
class Size:
    """How large the set of some documents is, all copies counted."""

    documents: int
    rows: int
    tokens: int
    positions: int

    def num_bytes(self, codec: Codec) -> float:
        """About how large a set with this codec will be."""
        return self.tokens * BYTES_PER_TOKEN + self.positions * codec.num_bytes()


def estimate_size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> Size:
    """Cuts and masks documents spread evenly over the corpus, and multiplies.

    Raises:
        DataError: if no token of the whole corpus can be masked.
    """
    total = text.documents.num_documents
    for ranges in text.samples():
        sample = _size(text, tokens, plan, ranges)
        if sample.positions:
            numbers = (sample.rows, sample.tokens, sample.positions)
            return Size(total, *(round(number * total / sample.documents) for number in numbers))
    raise nothing_to_mask(text, f"{total:,} documents")


def _size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan, ranges: list[tuple[int, int]]) -> Size:
    """Of these documents alone; exact."""
    documents = rows = num_tokens = positions = 0
    for start, stop in ranges:
        documents += stop - start
        for split in SPLITS:
            for sequences in text.sequences(tokens, split, start, stop):
                masked = mask(sequences, plan)
                rows += len(masked.sequence_R)
                num_tokens += len(masked.ids.flat)
                positions += len(masked.positions.flat)
    return Size(documents, rows, num_tokens, positions)
