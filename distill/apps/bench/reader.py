"""Something that reads sentences, to be timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pipeline.arrays import Ragged


@dataclass(frozen=True)
class Reader:
    """A student, or a peer of it, on a device.

    Attributes:
        name: for people.
        precision: of its weights, ``fp32`` or ``bf16``.
        num_parameters: how many numbers were trained.
        encoding: prepares sentences given as ids; a call of what it returns makes their vectors. None if its vectors
            are made of text only.
        predict: what it says of texts, or of pairs of them.
    """

    name: str
    precision: str
    num_parameters: int
    encoding: Callable[[Ragged], Callable[[], object]] | None
    predict: Callable[[Sequence[str], Sequence[str] | None], object]


def wait_for(device: torch.device) -> None:
    """Returns when a GPU has done all that it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
