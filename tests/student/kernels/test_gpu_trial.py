"""Kernels that do not do what they should on this machine are not used."""

from types import SimpleNamespace

import pytest
import torch

from student.kernels import compiled, reference
from student.kernels.gpu_trial import find_problem

CPU = torch.device("cpu")


def kernels(**changes: object) -> SimpleNamespace:
    names = ("reduce", "reduce_backward", "scan", "scan_backward")
    return SimpleNamespace(**{name: getattr(reference, name) for name in names} | changes)


@pytest.mark.skipif(compiled.library() is None, reason="nothing is built")
def test_right_kernels_pass() -> None:
    assert find_problem(compiled, CPU) is None
    assert find_problem(kernels(), CPU) is None


@pytest.mark.parametrize("name", ["reduce", "scan"])
def test_wrong_gradients_are_noticed(name: str) -> None:
    def doubled(*arguments: object) -> object:
        return [2 * part for part in getattr(reference, f"{name}_backward")(*arguments)]

    assert str(find_problem(kernels(**{f"{name}_backward": doubled}), CPU)).startswith(f"{name} is off by")


def test_no_number_is_no_agreement() -> None:
    changed = kernels(scan=lambda *arguments: reference.scan(*arguments) * torch.nan)
    assert find_problem(changed, CPU) == "scan is off by nan"


def test_a_compiler_that_fails_is_told_of() -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such instruction\nand more")

    assert find_problem(kernels(reduce=fails), CPU) == "RuntimeError: no such instruction"
