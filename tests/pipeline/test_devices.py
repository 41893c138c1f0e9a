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
from pipeline import devices, environment
from pipeline.devices import processes
from pipeline.environment import check_launched
from pipeline.errors import ConfigError, MissingDependencyError
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


def wait_and_print() -> None:
    devices.WAITING_SECONDS = 0
    wait_for_all()


def join_and_die() -> None:
    processes()
    os.kill(os.getpid(), signal.SIGKILL)


def test_sigterm_ends_a_process_that_waits_for_one_that_never_came() -> None:
    rank, _ = ranks(2)
    process = Forked(partial(with_exit_code, wait_and_print), environment=rank)
    while not listens(int(rank["MASTER_PORT"])):  # as the first one does before it waits for the others
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)  # until the message is printed
    os.kill(process.pid, signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "WORLD_SIZE=2" in error


LAUNCHED = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
OF_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*environment.LAUNCHED, "MASTER_ADDR", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_launcher")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (LAUNCHED, "WORLD_SIZE=2"),
        (LAUNCHED | {"WORLD_SIZE": "1", "RANK": "0"}, None),
        (dict.fromkeys(LAUNCHED, ""), None),
        ({"LOCAL_RANK": "-1", "OMP_NUM_THREADS": "", "ACCELERATE_TORCH_DEVICE": ""}, None),
        (OF_MPI | {"MASTER_ADDR": "host"}, "OMPI_COMM_WORLD_SIZE=2"),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),  # of a shell within srun
    ],
)
def test_empty_variables_of_launchers_are_not_set(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.is_main_process() == (variables.get("RANK") != "1")
    assert check_launched() == expected
    assert not any(os.environ.get(name) == "" for name in variables)


@pytest.mark.usefixtures("no_launcher")
def test_threads_may_have_a_number_for_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4, 2")
    assert check_launched() is None
    assert os.environ["OMP_NUM_THREADS"] == "4"


@pytest.mark.usefixtures("no_launcher")
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WORLD_SIZE": "two", "RANK": "0"}, ["WORLD_SIZE=two"]),
        ({"RANK": "abc"}, ["RANK=abc"]),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "x"}, ["OMPI_COMM_WORLD_LOCAL_RANK=x"]),
        (LAUNCHED | {"MASTER_PORT": "http"}, ["MASTER_PORT=http"]),
        (LAUNCHED | {"RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        (LAUNCHED | {"WORLD_SIZE": "0"}, ["RANK=1", "WORLD_SIZE=0"]),
        (OF_MPI, ["OMPI_COMM_WORLD_SIZE=2", "MASTER_ADDR"]),
        ({"LOCAL_RANK": "0"}, ["LOCAL_RANK=0", "WORLD_SIZE", "RANK", "MASTER_ADDR"]),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "host"}, ["WORLD_SIZE=2", "RANK"]),
        ({"OMP_NUM_THREADS": "four,2"}, ["OMP_NUM_THREADS=four"]),
    ],
)
def test_variables_of_launchers_that_do_not_fit_are_refused_by_name(
    variables: dict[str, str], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=naming(*named)):
        processes()


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
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingDependencyError, match=naming("accelerate", "distill-offline[teacher]")):
        processes()
