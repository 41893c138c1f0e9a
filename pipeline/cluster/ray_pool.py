"""Shares work among workers on a Ray cluster, which pull pieces of it.

Defines the flags of the commands that use it.

The driver assigns pieces and receives their results. A piece must be a function of its payload, so that any worker can
repeat it. Ray places the workers, moves the bytes and reports deaths. This module handles deaths: a dead worker is
replaced, and its piece is repeated. After three deaths on one piece, the command ends. An error that a worker returns
ends the command.
"""

import json
import os
import platform
import secrets
import signal
import socket
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, field_validator

from pipeline import console, interrupts
from pipeline.environment import numbers
from pipeline.errors import ConfigError, DistillError, MissingDependencyError, PassingError
from pipeline.files import TEMPORARY_SUFFIX, write_text
from pipeline.settings import Settings
from pipeline.shared_settings import PLACE

LOCAL = "local"
Piece = TypeVar("Piece")
Result = TypeVar("Result")
MOST_DEATHS = 3  # deaths on the same piece, or in a row before any worker was ready
GETTING_READY = "getting ready"
SLOW = 2  # A worker is slow if it takes this many times the median.
NOTE_EVERY_S = 60
# NFS clients may cache for a minute that a file does not exist.
SEEN_WITHIN_S = 90.0


class RayFlags(Settings):
    """The workers of a Ray cluster."""

    panel: ClassVar = "A Ray cluster"
    chosen_by: ClassVar = "ray"
    ray: str = Field(
        description="Run workers on a Ray cluster: its address, auto for the cluster of this machine, local (or --ray "
        "alone) for a new one on this machine.",
        json_schema_extra=PLACE,
    )
    ray_workers: int | None = Field(
        None, ge=1, description="Number of workers. Default: as many as fit into the cluster.", json_schema_extra=PLACE
    )
    ray_resources: str | None = Field(
        None,
        description='Resources of each worker as JSON. Default: {"GPU": 1} if there are GPUs, else {"CPU": 1}.',
        json_schema_extra=PLACE,
    )

    @field_validator("ray")
    @classmethod
    def _alone(cls, value: str) -> str:
        if numbers(["WORLD_SIZE"]).get("WORLD_SIZE", 1) > 1:
            raise ValueError("places its workers itself. Start the command without accelerate or torchrun.")
        return value

    @field_validator("ray_resources")
    @classmethod
    def _are_amounts(cls, value: str | None) -> str | None:
        if value is not None and not _amounts(value):
            raise ValueError('should be like {"GPU": 1, "CPU": 0.5}')
        return value

    @property
    def resources(self) -> dict[str, float] | None:
        """Returns the resources of each worker by name, or None without the flag."""
        return None if self.ray_resources is None else _amounts(self.ray_resources)


class RayWriteFlags(RayFlags):
    """The workers of a Ray cluster, and the process that writes their results."""

    panel: ClassVar = RayFlags.panel
    ray_write: Literal["driver", "workers"] = Field(
        "driver",
        description="Process that writes the files: the driver writes all of them, or workers write their own. workers "
        "needs a store that all machines see under the same path, and is faster for large files.",
        json_schema_extra=PLACE,
    )


def _amounts(text: str) -> dict[str, float] | None:
    """Returns a JSON object of amounts that Ray accepts: integers, and fractions of 1 of at least 0.0001.

    None if invalid.
    """
    try:
        amounts: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(amounts, dict) or not amounts or not all(map(_is_amount, amounts.values())):
        return None
    return {str(name): float(amount) for name, amount in amounts.items()}


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0.0001 <= value < float("inf") and (value < 1 or value == int(value))


@dataclass(frozen=True)
class WorkerTask(Generic[Result]):
    """The task of the workers.

    Attributes:
        start: called once by each worker with ``shared``. Returns the function that does a piece.
        shared: sent to each machine once.
        libraries: packages whose versions must be those of the driver.
    """

    start: Callable[[Any], Callable[[Any], Result]]
    shared: Any
    libraries: Sequence[str] = ()


@dataclass
class _Worker:
    """The driver's view of a worker: Ray's handle, its machine, and its finished work."""

    actor: Any
    place: str = ""
    pieces: int = 0
    seconds: float = 0.0


class _Actor:
    """The worker's side of a worker, which Ray runs as an actor."""

    def __init__(self, start: Callable[[Any], Callable[[Any], Any]], shared: Any, versions: dict[str, str]) -> None:
        os.environ["RANK"] = "worker"  # the driver alone reports
        self._start, self._shared, self._versions = start, shared, versions

    def ready(self) -> tuple[str, DistillError | None]:
        """Returns the place of this worker, and its problem if there is one."""
        place = f"{socket.gethostname()}, process {os.getpid()}"
        here = _versions(self._versions)
        wrong = [
            f"{name} {here[name]} (the driver: {expected})"
            for name, expected in self._versions.items()
            if here[name] != expected
        ]
        if wrong:
            return place, ConfigError(
                f"{place}: has other versions: {', '.join(wrong)}. All machines need the same versions"
            )
        try:
            self._work = self._start(self._shared)
        except DistillError as error:
            return place, error
        return place, None

    def do(self, piece: Any) -> tuple[Any, float]:
        """Returns the result of a piece, or its error, and the seconds that it took."""
        start = monotonic()
        try:
            return self._work(piece), monotonic() - start
        except DistillError as error:
            return error, monotonic() - start


@contextmanager
def _letting_sigterm_through() -> Iterator[None]:
    """Lets `Stopped` through, which Ray's compiled parts wrap in an error of the interpreter."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__ or error.__context__, interrupts.Stopped):
            raise interrupts.Stopped from error
        raise


@contextmanager
def on_cluster(flags: RayFlags) -> Iterator[Any]:
    """Returns Ray, connected to the cluster that the flags name. An existing connection of this process is used.

    Raises:
        MissingDependencyError: if Ray is not installed.
        PassingError: if the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("--ray needs ray: pip install 'distill-offline[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=flags.ray, log_to_driver=False, logging_level="error", **_local(flags))
    except Exception as error:  # Ray raises its most general error if a cluster does not start in time
        raise PassingError(f"--ray {flags.ray}: cannot be reached: {str(error).splitlines()[0]}") from error
    if is_main:
        signal.signal(signal.SIGTERM, handler)  # Ray replaces this handler by its own
    try:
        yield ray
    finally:
        ray.shutdown()


def _local(flags: RayFlags) -> dict[str, Any]:
    """Arguments for a cluster that is started here. They allow the requested number of workers, also on few CPUs."""
    if flags.ray != LOCAL:
        return {}
    return {"include_dashboard": False, "num_cpus": max(flags.ray_workers or 1, os.cpu_count() or 1)}


@dataclass
class RayPool(Generic[Piece, Result]):
    """The workers of one command, for one round of pieces.

    Attributes:
        ray: the connected library.
        flags: the number of workers and their resources.
        task: the work.
        name: the name of a piece in messages.
        payload: returns the input of a piece. It is called when the piece is assigned.
    """

    ray: Any
    flags: RayFlags
    task: WorkerTask[Result]
    name: Callable[[Piece], str]
    payload: Callable[[Piece], Any]
    _pending: dict[Any, tuple[_Worker, Piece | None]] = field(default_factory=dict)  # None while the worker starts
    _waiting: deque[Piece] = field(default_factory=deque)
    _deaths: Counter[str] = field(default_factory=Counter)
    _num_dead: int = 0
    _done: list[_Worker] = field(default_factory=list)

    def results(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Result]]:
        """Yields each piece with its result, in the order of completion.

        After SIGTERM, pieces in progress are finished.

        Raises:
            ConfigError: if no worker can ever start.
            DistillError: if a piece or a worker fails, or if a piece kills its workers.
        """
        ray = self.ray
        self._waiting.extend(pieces)
        resources = self.flags.resources or ({"GPU": 1.0} if ray.cluster_resources().get("GPU") else {"CPU": 1.0})
        num_workers = workers_to_start(self.flags, resources, ray.nodes())
        other = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
        own = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": other}
        shared, actor_class = ray.put(self.task.shared), self.ray.remote(_Actor).options(max_restarts=0, **own)
        try:
            with interrupts.uninterrupted():
                for _ in range(min(num_workers, len(pieces))):
                    self._start(actor_class, shared)
                while self._is_left():
                    yield from self._next(actor_class, shared)
        finally:
            for worker, _ in self._pending.values():
                ray.kill(worker.actor)
        self._log_summary()

    def _is_left(self) -> bool:
        """Whether a piece is in progress or can still be assigned.

        Workers that start without a piece left are not waited for.
        """
        is_working = any(piece is not None for _, piece in self._pending.values())
        return is_working or bool(self._pending and self._waiting and not interrupts.is_stopping())

    def _next(self, actor_class: Any, shared: Any) -> Iterator[tuple[Piece, Result]]:
        """Waits for one answer, and gives its worker the next piece before the result is used."""
        with _letting_sigterm_through():
            answers, _ = self.ray.wait(list(self._pending), num_returns=1, timeout=NOTE_EVERY_S)
        if not answers:
            busy = sum(piece is not None for _, piece in self._pending.values())
            console.note(f"{busy} of {len(self._pending)} workers work, {len(self._waiting)} pieces wait for one")
            return
        worker, piece = self._pending.pop(answers[0])
        try:
            with _letting_sigterm_through():
                answer, seconds_or_error = self.ray.get(answers[0])
        except self.ray.exceptions.RayTaskError:  # a bug of ours, which a repetition does not fix
            raise
        except self.ray.exceptions.RayError:
            self._replace(worker, piece, actor_class, shared)
            return
        if piece is None:
            worker.place = answer
            _raise_error(seconds_or_error)
            self._deaths[GETTING_READY] = 0
        else:
            worker.pieces, worker.seconds = worker.pieces + 1, worker.seconds + seconds_or_error
            _raise_error(answer, self.name(piece))
        self._assign(worker)
        if piece is not None:
            yield piece, answer

    def _start(self, actor_class: Any, shared: Any) -> None:
        worker = _Worker(actor_class.remote(self.task.start, shared, _versions(self.task.libraries)))
        self._pending[worker.actor.ready.remote()] = (worker, None)

    def _assign(self, worker: _Worker) -> None:
        """Gives a worker the next piece, or lets it go."""
        if self._waiting and not interrupts.is_stopping():
            piece = self._waiting.popleft()
            self._pending[worker.actor.do.remote(self.payload(piece))] = (worker, piece)
        else:
            self._done.append(worker)
            self.ray.kill(worker.actor)

    def _replace(self, worker: _Worker, piece: Piece | None, actor_class: Any, shared: Any) -> None:
        """Returns a dead worker's piece to the queue, and starts a new worker."""
        self._done.append(worker)
        name = GETTING_READY if piece is None else self.name(piece)
        self._deaths[name] += 1
        self._num_dead += 1
        if self._deaths[name] >= MOST_DEATHS:
            advice = "Check the memory of the machines, and try a single process without --ray."
            raise DistillError(f"{name}: {MOST_DEATHS} workers died while they did it, so it is given up. {advice}")
        console.note(f"a worker died ({worker.place or 'never ready'}), {name}: another worker repeats it")
        if piece is not None:
            self._waiting.appendleft(piece)
        if self._waiting and not interrupts.is_stopping():
            self._start(actor_class, shared)

    def _log_summary(self) -> None:
        at_work = [worker for worker in self._done if worker.pieces]
        paces = [worker.seconds / worker.pieces for worker in at_work]
        if not paces:
            return
        pieces = sum(worker.pieces for worker in at_work)
        console.note(
            f"{len(at_work)} workers: {pieces} pieces in {statistics.median(paces):.1f} s each, "
            f"{self._num_dead} workers died"
        )
        for worker, pace in zip(at_work, paces, strict=True):
            if worker.pieces > 1 and pace > SLOW * statistics.median(paces):
                console.warn(f"the worker on {worker.place} was slow: {pace:.1f} s a piece")


def _raise_error(answer: Any, name: str = "") -> None:
    """Raises the error that a worker has returned, with the name of its piece."""
    if isinstance(answer, DistillError):
        raise type(answer)(f"{name}: {answer}" if name else str(answer))


def workers_to_start(flags: RayFlags, resources: Mapping[str, float], machines: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of workers to start: the requested number, as many as fit, or 1 if machines may join later.

    Raises:
        ConfigError: if no worker fits on a cluster of only this machine.
    """
    fitting = workers_that_fit(resources, machines)
    if not fitting and flags.ray == LOCAL:
        has = {
            name: amount for machine in machines for name, amount in machine["Resources"].items() if name in resources
        }
        raise ConfigError(
            f"--ray-resources: a worker needs {dict(resources)}, but this machine has only {has or 'none of it'}"
        )
    return flags.ray_workers or max(1, fitting)


def workers_that_fit(resources: Mapping[str, float], machines: Sequence[Mapping[str, Any]]) -> int:
    """Returns how many workers fit on the machines of a cluster. A worker cannot span machines.

    Args:
        resources: the resources of a worker, by name.
        machines: as Ray lists them.
    """
    there = [machine["Resources"] for machine in machines if machine["Alive"]]
    return sum(int(min(has.get(name, 0) / amount for name, amount in resources.items())) for has in there)


def _versions(names: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    return {"Python": platform.python_version()} | {name: version(name) for name in names if name != "Python"}


@contextmanager
def marked(folder: Path) -> Iterator[Path]:
    """Creates a file in ``folder`` for the duration of the block, by which other machines identify the folder.

    Raises:
        DataError: if the folder cannot be written.
    """
    # The temporary suffix lets the next command remove a mark that a killed driver left.
    mark = folder.absolute() / f".driver-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    write_text(mark, "")
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def require_marked(mark: Path) -> None:
    """Raises ConfigError unless the driver's mark is seen by this process."""
    if not mark.exists():
        unseen = f"{socket.gethostname()} does not see the driver's {mark.parent}"
        advice = "Mount the store there under the same path, or remove the flag, so that the driver writes."
        raise ConfigError(f"--ray-write workers: {unseen}. {advice}")


def require_seen(folder: Path, sizes: Mapping[str, int]) -> None:
    """Waits until this process sees the files that workers have written.

    Args:
        folder: the folder of the files.
        sizes: bytes of each, by its path in the folder.

    Raises:
        PassingError: if one is missing or has another size after `SEEN_WITHIN_S`.
    """
    until = time.monotonic() + SEEN_WITHIN_S
    while unseen := [path for path, size in sizes.items() if not _has(folder / path, size)]:
        if time.monotonic() > until:
            raise PassingError(
                f"{folder / unseen[0]}: a worker has written {sizes[unseen[0]]:,} bytes, which are not seen here. "
                "Repeat the command once all machines see the same store."
            )
        time.sleep(1)


def _has(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size
