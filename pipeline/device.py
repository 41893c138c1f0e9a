"""What the machine can do, and getting tensors to where the work is done."""

from functools import cache
from typing import Any

import torch


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
