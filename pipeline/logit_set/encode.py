"""Putting what a teacher says into a codec's columns, and counting on the way how right it is and how much is kept.

Shapes: P positions.
"""

import numpy as np
import pyarrow as pa
import torch

from pipeline.hashing import hashed, uniform
from pipeline.logit_set.codec import Codec
from pipeline.logit_set.codecs import CODECS, Predictions
from pipeline.logit_set.tokens import MaskedRows, Statistics
from pipeline.targets import Floats64

DRAW = 3  # what the random numbers are for, beside those of masking


def draws(rows: MaskedRows, seed: int) -> Floats64:
    """A random number in (0, 1) for each masked position [P]: a function of the seed, the row's key and the place."""
    row_P = np.repeat(np.arange(len(rows)), rows.positions.lengths)
    key = (rows.source_row_R[row_P], rows.piece_R[row_P], rows.copy_R[row_P], rows.positions.flat)
    return uniform(hashed(seed, DRAW, *key))


def encode(codec: Codec, said: Predictions, target_P: torch.Tensor, statistics: Statistics) -> dict[str, pa.Array]:
    """The codec's columns for some positions; adds to the statistics.

    Args:
        codec: how to store it.
        said: what the teacher says.
        target_P: int64, what stood there.
        statistics: receives positions, right guesses, nats of the targets, and the mass that is kept.
    """
    with torch.autocast(target_P.device.type, enabled=False):
        columns, mass_P = CODECS[codec.name].encode(codec, said)
    nats_P = said.log_z_P - said.logits_PV.gather(1, target_P[:, None]).squeeze(1)
    sums = {
        "positions": len(target_P),
        "right": int((said.logits_PV.argmax(dim=1) == target_P).sum()),
        "nats": float(nats_P.double().sum()),
        "kept_mass": float(mass_P.double().sum()),
    }
    for name, value in sums.items():
        statistics[name] += value
    return columns


def no_statistics() -> Statistics:
    """Sums over no position."""
    return dict.fromkeys(("positions", "right", "nats", "kept_mass"), 0.0)
