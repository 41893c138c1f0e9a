"""Random numbers that are a function of what they are for: the same on every machine, in every order, for good."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Floats64

Hashes = npt.NDArray[np.uint64]

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hashed(*key: Any) -> Hashes:
    """A 64-bit hash of each key; its parts are integers or arrays of them, broadcast against each other.

    Each part is absorbed by the mixing function of SplitMix64 (Steele, Lea and Flood 2014).
    """
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            state = state + GOLDEN_GAMMA + np.asarray(part, dtype=np.int64).astype(np.uint64)
            state = (state ^ (state >> np.uint64(30))) * FIRST_FACTOR
            state = (state ^ (state >> np.uint64(27))) * SECOND_FACTOR
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(hashes: Hashes) -> Floats64:
    """Hashes as numbers between 0 and 1, both excluded, 2^-52 apart."""
    return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
