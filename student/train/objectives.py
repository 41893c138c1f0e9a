"""What ``--objective`` chooses from: how a student's layers learn from its teacher's.

Shapes: B rows, S starts, T tokens, H width, A heads, L tokens of the longest row.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pipeline.sets.record_parts import LayersName
from student.train.layer_flags import ObjectiveName
from student.train.layer_losses import direction_error, score_error, share_divergence, state_error


@dataclass(frozen=True)
class Objective:
    """A kind of loss between layers.

    Attributes:
        signal: what of the teacher it needs.
        error: the loss of each row: of states [T, H] and their starts, or of squares [B, A, L, L] and their mask. None
            for `Contrast`, which compares all layers at once.
        needs_attention: whether only a student with attention has what it compares.
    """

    signal: LayersName
    error: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    needs_attention: bool = False


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "hid-cls": Objective("cls", state_error),
    "hid-cls-contrast": Objective("cls", None),
    "pkd": Objective("cls", direction_error),
    "hid-seq": Objective("states", state_error),
    "att-mse": Objective("attention", score_error, needs_attention=True),
    "att-kl": Objective("attention", share_divergence, needs_attention=True),
    "val-kl": Objective("values", share_divergence, needs_attention=True),
}
