"""The methods of augmentation, by the names that flags, tasks and sets call them."""

from typing import TYPE_CHECKING, Literal

from pipeline.config import refuse_flags
from teacher.augment.flags import AugmentFlags
from teacher.augment.mask_each import MaskEach
from teacher.augment.mask_pos import MaskPos
from teacher.augment.method import Method
from teacher.augment.tinybert import TinyBert

METHODS: dict[str, Method] = {"tinybert": TinyBert(), "mask-pos": MaskPos(), "mask-each": MaskEach()}

NO_METHOD = "none"

if TYPE_CHECKING:
    KnownMethod = str
    MethodOrNone = str
else:
    KnownMethod = Literal[tuple(METHODS)]  # so that the command line offers them
    MethodOrNone = Literal[*METHODS, NO_METHOD]


def flags_of_others(method: str) -> frozenset[str]:
    """The fields of `MethodFlags` that are for other methods alone."""
    return frozenset().union(*(other.flags for other in METHODS.values())) - METHODS[method].flags


def check_flags(flags: AugmentFlags, method: str | None) -> None:
    """Raises ConfigError for flags of another method than this one, or of any if there is none."""
    if method is None:
        refuse_flags(flags, AugmentFlags.model_fields, "is for augmentation; give --augment METHOD, too")
    else:
        refuse_flags(flags, AugmentFlags.model_fields.keys() & flags_of_others(method), f"is not for method {method}")
        METHODS[method].check(flags)
