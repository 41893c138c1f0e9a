"""Getting tensors to where the work is done."""

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a tensor to the device; to a GPU from pinned memory, so that the host need not wait."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
