"""What is compared: a student, its teacher or a baseline, as a function from texts to logits.

Shapes: N rows, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.arrays import Floats
from pipeline.tasks.target import Target

Predict = Callable[[Sequence[str], Sequence[str] | None], Floats]


@dataclass(frozen=True)
class System:
    """Something that reads sentences, or pairs, and labels or scores them.

    Attributes:
        target: what its logits mean.
        logits: float32 logits [N, C] of first sentences, and of second ones if the task has pairs.
        num_parameters: how many numbers it has.
        num_bytes: what has to be kept on disk to use it: weights, vocabulary, settings.
    """

    target: Target
    logits: Predict
    num_parameters: int
    num_bytes: int
