"""How distributions over the vocabulary are stored: one file per codec, all with the functions of `CodecModule`."""

from pipeline.logit_set.codecs import dense, hidden, sampled, topk
from pipeline.logit_set.codecs.common import (
    CodecModule,
    Decoder,
    Dense,
    Distribution,
    Kept,
    Predictions,
    read_decoder,
)
from pipeline.logit_set.parts import CodecName

CODECS: dict[CodecName, CodecModule] = {"dense": dense, "topk": topk, "sampled": sampled, "hidden": hidden}

__all__ = [
    "CODECS",
    "CodecModule",
    "Decoder",
    "Dense",
    "Distribution",
    "Kept",
    "Predictions",
    "read_decoder",
]
