"""How large the set of a whole corpus will be, from documents spread over it."""

from dataclasses import dataclass

from pipeline.logit_set.codecs import Codec
from teacher.corpus.masking import MaskingPlan, mask
from teacher.corpus.text import SPLITS, Text, nothing_to_mask, spread_ranges
from teacher.inference.masked_lm import MlmTokenizer

SAMPLED_DOCUMENTS = 512
BYTES_PER_TOKEN = 2.25  # of the masked ids, positions and targets, measured on Wikipedia


@dataclass(frozen=True)
class Size:
    """Of a corpus, all copies counted; an estimate."""

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
        DataError: if that were all, and no token can be masked.
    """
    total = text.documents.num_documents
    at_once = 64 if text.config.packing == "blocks" else 8  # short documents have to fill a block together
    documents = rows = num_tokens = positions = 0
    for start, stop in spread_ranges(total, SAMPLED_DOCUMENTS, at_once):
        documents += stop - start
        for split in SPLITS:
            for sequences in text.sequences(tokens, split, start, stop):
                masked = mask(sequences, plan)
                rows += len(masked.sequence_R)
                num_tokens += len(masked.ids.flat)
                positions += len(masked.positions.flat)
    if not positions and documents == total:
        raise nothing_to_mask(text, f"{documents:,} documents")
    factor = total / documents
    return Size(total, round(rows * factor), round(num_tokens * factor), round(positions * factor))
