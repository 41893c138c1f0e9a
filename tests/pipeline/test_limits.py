import errno

import pyarrow as pa
import pytest
import torch

from pipeline.errors import limit_reached


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left", "a/b"), ["a/b: ", "disk", "repeat the command"]),
        (OSError(errno.EROFS, "Read-only", "a/b"), ["a/b: ", "disk"]),
        (OSError(errno.EMFILE, "Too many open files", "a"), ["ulimit -n"]),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), ["a/b: ", "permission"]),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaa"), ["aaa: ", "name"]),
        (Exception("Read-only file system (os error 30)"), ["disk", "repeat the command"]),
        (Exception("No such file (os error 2)"), None),
        (MemoryError(), ["memory"]),
        (pa.ArrowMemoryError("malloc of size 64 failed"), ["memory"]),
        (RuntimeError("can't start new thread"), ["memory"]),
        (RuntimeError("Resource temporarily unavailable"), ["memory"]),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"), ["process"]),
        (torch.distributed.DistStoreError("wait timeout after 1000ms"), ["process"]),
        (FileNotFoundError(errno.ENOENT, "No such file", "a"), None),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_a_limit_is_told_apart_from_a_mistake(error: BaseException, words: list[str] | None) -> None:
    reason = limit_reached(error)
    assert (reason is None) == (words is None)
    assert all(part in str(reason) for part in words or [])


def test_torch_that_asks_for_too_much() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert "memory" in str(limit_reached(caught.value))


def test_the_reason_may_lie_below_another_error() -> None:
    error = ValueError("not a tokenizer")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files", "a")
    assert "ulimit" in str(limit_reached(error))
