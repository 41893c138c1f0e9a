"""Processes that a launcher has started for one command: what each of them does when another one is gone."""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
import typer

from distill.commands.command import reports_errors
from pipeline import devices
from pipeline.devices import processes
from pipeline.errors import MissingDependencyError
from tests.helpers.commands import listens, ranks
from tests.helpers.forked import Forked
from tests.helpers.messages import naming


def with_exit_code(command: Callable[[], None]) -> None:
    try:
        reports_errors(command)()
    except typer.Exit as end:
        sys.exit(end.exit_code)


def wait_for_all() -> None:
    processes().wait_for_everyone()


def join_and_die() -> None:
    processes()
    os.kill(os.getpid(), signal.SIGKILL)


def test_sigterm_ends_a_process_that_waits_for_one_that_never_came() -> None:
    rank, _ = ranks(2)
    process = Forked(partial(with_exit_code, wait_for_all), environment=rank)
    while not listens(int(rank["MASTER_PORT"])):  # as the first one does before it waits for the others
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_a_process_says_that_another_one_is_gone() -> None:
    rank, other_rank = ranks(2)
    process = Forked(partial(with_exit_code, wait_for_all), environment=rank)
    Forked(join_and_die, environment=other_rank).communicate(timeout=60)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75
    assert error.startswith("error: ")
    assert "process" in error
    assert "Traceback" not in error


def test_without_accelerate_one_process_works_alone_and_several_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    alone = processes()
    assert (alone.num_processes, alone.process_index, alone.is_main_process) == (1, 0, True)
    assert alone.device.type in ("cpu", "cuda", "mps")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MissingDependencyError, match=naming("accelerate", "distill-offline[teacher]")):
        processes()
