"""The processes that a launcher has started for one command."""

from contextlib import nullcontext

import torch
from accelerate import PartialState

from pipeline.environment import num_processes
from pipeline.stopping import ends_on_signals


def processes() -> PartialState:
    """This process, its device, and those that it shares the work with.

    Accelerate joins processes without an accelerator only where it is told that there is none, which `torchrun` does
    not do: each of them would take itself for the only one, and do all the work. Until all are there torch waits where
    Python heeds no signal, for half an hour if one of them has ended before.
    """
    with ends_on_signals() if num_processes() > 1 else nullcontext():
        return PartialState(cpu=not torch.accelerator.is_available())
