"""The methods of augmentation, by the names that flags, tasks and sets call them."""

from typing import TYPE_CHECKING, Literal

from teacher.augment.mask_pos import MaskPos
from teacher.augment.method import Method
from teacher.augment.tinybert import TinyBert

METHODS: dict[str, Method] = {"tinybert": TinyBert(), "mask-pos": MaskPos()}

if TYPE_CHECKING:
    KnownMethod = str
else:
    KnownMethod = Literal[tuple(METHODS)]  # so that the command line offers them


def flags_of_others(method: str) -> frozenset[str]:
    """The fields of `AugmentConfig` that are for other methods alone."""
    return frozenset().union(*(other.flags for other in METHODS.values())) - METHODS[method].flags
