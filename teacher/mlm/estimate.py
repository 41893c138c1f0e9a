"""How much a corpus comes to, from a sample of it."""

from dataclasses import dataclass

import numpy as np

from pipeline.logit_set.codec import Codec
from pipeline.logit_set.codecs import CODECS
from teacher.mlm.masking import MaskingPlan, mask
from teacher.mlm.model import MlmTokenizer
from teacher.mlm.text import SPLITS, Text

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
        return self.tokens * BYTES_PER_TOKEN + self.positions * CODECS[codec.name].num_bytes(codec)


def estimate_size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> Size:
    """Cuts and masks documents spread evenly over the corpus, and multiplies."""
    total = text.documents.num_documents
    starts = np.unique(np.linspace(0, max(0, total - 8), -(-min(total, SAMPLED_DOCUMENTS) // 8)).astype(int))
    documents = rows = num_tokens = positions = 0
    for start in starts.tolist():
        stop = min(start + 8, total)
        documents += stop - start
        for split in SPLITS:
            for sequences in text.sequences(tokens, split, start, stop):
                masked = mask(sequences, plan)
                rows += len(masked.sequence_R)
                num_tokens += len(masked.ids.flat)
                positions += len(masked.positions.flat)
    factor = total / documents
    return Size(total, round(rows * factor), round(num_tokens * factor), round(positions * factor))
