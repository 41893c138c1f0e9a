"""Whether the GPU's kernels do on this machine what they should: a small trial before they are relied on."""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pipeline import console
from student.kernels import reference
from student.kernels.reference import Tables

TOLERANCE = 1e-4  # of float32 products of matrices near the identity


@cache
def gpu_kernels() -> ModuleType | None:
    """The Triton kernels; None where Triton is missing, or where they fail the trial, which is said aloud."""
    try:
        from student.kernels import gpu
    except ImportError:
        return None
    problem = find_problem(gpu, torch.device("cuda"))
    if problem is None:
        return gpu
    console.warn(f"the GPU's own kernels are not used here, plain torch is, more slowly: {problem}")
    return None


def find_problem(kernels: Any, device: torch.device) -> str | None:
    """What is wrong with four kernels of products, compared with `reference` in float64; None if nothing is."""
    tables, ids_T, starts_S = _case()
    try:
        for name in ("reduce", "scan"):
            expected, wanted = _run(reference, name, _to(tables, torch.device("cpu"), torch.float64), ids_T, starts_S)
            on_device = (_to(tables, device, torch.float32), ids_T.to(device), starts_S.to(device))
            features, gradients = _run(kernels, name, *on_device)
            pairs = [(features, expected), *zip(gradients, wanted, strict=True)]
            off = max(float((actual.cpu() - right).abs().max()) for actual, right in pairs)
            if not off < TOLERANCE:
                return f"{name} is off by {off:.1e}"
    except Exception as error:  # noqa: BLE001  a compiler and a driver may fail in any way
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return None


def _run(kernels: Any, name: str, tables: Tables, ids_T: Tensor, starts_S: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Features, and their gradients for gradients that rise from -1 to 1."""
    features = getattr(kernels, name)(tables, ids_T, starts_S)
    grad = torch.linspace(-1, 1, features.numel(), device=features.device).to(features.dtype).view(features.shape)
    products = (features,) if name == "scan" else ()
    return features, getattr(kernels, f"{name}_backward")(tables, ids_T, starts_S, *products, grad)


def _case() -> tuple[Tables, Tensor, Tensor]:
    """The default sizes, and sequences of several lengths."""
    generator = torch.Generator().manual_seed(0)
    vectors, forward, backward = (0.02 * torch.randn(50, 400, generator=generator) for _ in range(3))
    identity = torch.eye(20).flatten()
    ids_T = torch.randint(50, (40,), generator=generator)
    return (vectors, identity + forward, identity + backward), ids_T, torch.tensor([0, 1, 1, 14, 40])


def _to(tables: Tables, device: torch.device, dtype: torch.dtype) -> Tables:
    vectors, forward, backward = (None if table is None else table.to(device, dtype) for table in tables)
    return vectors, forward, backward
