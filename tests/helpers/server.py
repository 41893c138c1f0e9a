"""``distill serve`` in processes of its own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and its address; it is ended with the block, if it has not ended before."""
    command = ["distill", "serve", *map(str, arguments), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, process.communicate()[1]
            yield process, url
        finally:
            process.terminate()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a server has forked."""
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
