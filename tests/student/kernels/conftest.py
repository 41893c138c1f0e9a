"""The levels of instructions whose kernels can run here."""

from collections.abc import Iterator

import pytest
import torch

from student.kernels import native

CAPABLE = native.LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("portable",))
BUILT = [level for level in CAPABLE if (path := native.library_path(level)) and native.load(path).is_supported()]


@pytest.fixture(scope="module", params=BUILT or ["none"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Has `native` use one level's kernels."""
    path = native.library_path(request.param)
    assert path is not None
    kernels = native.load(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: kernels)
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
