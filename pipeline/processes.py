"""The processes that a launcher has started for one command."""

import torch
from accelerate import PartialState


def processes() -> PartialState:
    """This process, its device, and those that it shares the work with.

    Accelerate joins processes without an accelerator only where it is told that there is none, which `torchrun` does
    not do: each of them would take itself for the only one, and do all the work.
    """
    return PartialState(cpu=not torch.accelerator.is_available())
