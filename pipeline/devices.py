"""The devices and the processes of a command, and getting tensors to where the work is done."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from pipeline.environment import num_processes
from pipeline.errors import MissingDependencyError
from pipeline.stopping import ends_on_signals

if TYPE_CHECKING:
    from accelerate import PartialState


@cache
def has_fast_bf16() -> bool:
    """Whether this machine has bf16 matrix instructions."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a tensor to the device; to a GPU from pinned memory, so that the host need not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


@dataclass(frozen=True)
class OneProcess:
    """A process that shares its work with no other, with what the student's stage reads of `PartialState`."""

    device: torch.device = field(default_factory=lambda: torch.accelerator.current_accelerator() or torch.device("cpu"))
    process_index: int = 0
    num_processes: int = 1
    is_main_process: bool = True

    def wait_for_everyone(self) -> None:
        """Returns at once."""

    def main_process_first(self) -> AbstractContextManager[None]:
        """Returns a context that waits for nobody."""
        return nullcontext()


def processes() -> "PartialState | OneProcess":
    """This process, its device, and those that it shares the work with.

    Accelerate joins processes without an accelerator only where it is told that there is none, which `torchrun` does
    not do: each of them would take itself for the only one, and do all the work. Until all are there torch waits where
    Python heeds no signal, for half an hour if one of them has ended before.

    Raises:
        MissingDependencyError: if there are several, and Accelerate, by which they exchange numbers, is not installed.
    """
    if find_spec("accelerate") is None:
        if num_processes() > 1:
            raise MissingDependencyError("several processes need accelerate: pip install 'distill-offline[teacher]'")
        return OneProcess()
    from accelerate import PartialState  # here, since a student answers without it

    with ends_on_signals() if num_processes() > 1 else nullcontext():
        return PartialState(cpu=not torch.accelerator.is_available())
