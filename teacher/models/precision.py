"""The arithmetic that a teacher computes in: fp32, bf16 or fp16, its head always in fp32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def inference_mode(device: torch.device, precision: str) -> Iterator[None]:
    """No gradients, and matrix products in ``precision``; weights are converted once per block."""
    dtype = DTYPES[precision]
    with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        yield


def head_settings(precision: str) -> dict[str, str]:
    """The settings that a set's fingerprint has of the head's float32; none where all is float32."""
    return {} if precision == "fp32" else {"head": "fp32"}


def keep_head_in_float32(model: Any) -> None:
    """Makes a classifier compute what follows its encoder in float32, whatever `inference_mode` says.

    These few products take no time, and rounding them goes straight into the logits; `tests/benchmarks/batching.py`
    tells the divergence from float32.
    """
    encoder = model.base_model
    head = [] if encoder is model else [part for part in model.children() if part is not encoder]
    if getattr(encoder, "pooler", None) is not None:
        head.append(encoder.pooler)
    for part in head:
        part.forward = _in_float32(part.forward)


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(hidden: torch.Tensor, *more: Any, **named: Any) -> Any:
        with torch.autocast(hidden.device.type, enabled=False):
            return forward(hidden.float(), *more, **named)

    return run
