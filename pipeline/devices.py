"""The devices and processes of a command, and copying tensors to a device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from threading import Timer
from typing import TYPE_CHECKING, Any

import torch

from pipeline import console
from pipeline.environment import check_launched, num_processes
from pipeline.errors import MissingDependencyError
from pipeline.interrupts import ends_on_signals

if TYPE_CHECKING:
    from accelerate import PartialState

WAITING_SECONDS = 5.0  # until a process prints that it waits for others


@cache
def has_fast_bf16() -> bool:
    """Whether this machine has bf16 matrix instructions."""
    if torch.cuda.is_available():
        # Emulated bf16 is slower than float32, so only GPUs with real bf16 units count.
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a tensor to the device. A copy to a GPU uses pinned memory, so that the host does not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


@dataclass(frozen=True)
class OneProcess:
    """A single process, with the attributes of `PartialState` that the student's stage reads."""

    device: torch.device = field(default_factory=lambda: torch.accelerator.current_accelerator() or torch.device("cpu"))
    process_index: int = 0
    num_processes: int = 1
    is_main_process: bool = True

    def wait_for_everyone(self) -> None:
        """Returns at once."""

    def main_process_first(self) -> AbstractContextManager[None]:
        """Returns a context that does not wait, because there are no other processes."""
        return nullcontext()


def processes() -> "PartialState | OneProcess":
    """Returns this process with its device, and the processes that share its work.

    Accelerate connects processes without an accelerator only if the lack of one is declared, which `torchrun` does
    not do: each process would consider itself the only one and do all the work. While torch waits for all processes to
    start, Python handles no signals. That takes half an hour if one of them has already ended.

    Raises:
        ConfigError: if variables of a launcher do not fit.
        MissingDependencyError: if there are several processes and Accelerate, which connects them, is not installed.
    """
    launched = check_launched()
    if find_spec("accelerate") is None:
        if num_processes() > 1:
            raise MissingDependencyError("several processes need accelerate: pip install 'distill-offline[teacher]'")
        return OneProcess()
    # Imported here, because a student predicts without accelerate.
    from accelerate import PartialState

    with _waiting(launched) if launched else nullcontext():
        return PartialState(cpu=not torch.accelerator.is_available())


@contextmanager
def _waiting(launched: str) -> Iterator[None]:
    """Prints what the process waits for, if the block takes long. Signals end the process within the block."""
    remedy = f"Start them with `accelerate launch` or `torchrun`, or unset {launched.partition('=')[0]}"
    # Every process prints it: a left-over RANK=1 has no main process.
    words = f"waiting for the other processes ({launched}). {remedy}"
    timer = Timer(WAITING_SECONDS, lambda: console.stderr.print(words, soft_wrap=True))
    timer.daemon = True
    timer.start()
    try:
        with ends_on_signals():
            yield
    finally:
        timer.cancel()
