"""Loads students once and serves them from one process, or from several that share their memory.

Workers are forked. Uvicorn's own workers are new processes that would each load every student and its teacher's sets.
"""

import gc
import importlib.util
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from threadpoolctl import threadpool_limits

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import names_of, open_served
from pipeline import console
from pipeline.errors import ConfigError, did_you_mean, raise_all
from student.predict.multi_task import cascade_of

DRAIN_SECONDS = 30
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(config: ServeSettings) -> None:
    """Serves students until it is stopped, then answers the pending requests.

    Raises:
        ConfigError: naming every run that does not exist or labels words, or if the address is not available.
    """
    raise_all(ConfigError, "nothing to serve", _problems(config))
    # Before the students are loaded, which takes seconds.
    with _bound(config) as listener:
        _serve_at(listener, config)


def _serve_at(listener: socket.socket, config: ServeSettings) -> None:
    threads = _one_thread(config.runs)
    metrics = Metrics(config.workers)
    loaded = [served for run in config.runs for served in open_served(Path(run), metrics, config.workers)]
    if config.collect is not None:
        for cascade in filter(None, (cascade_of(one.predictor) for one in loaded)):  # one, see `ServeSettings`
            cascade.collect(config.collect, not config.collect_without_text)
    app = App({served.name: served for served in loaded}, config, metrics)
    # A full collection over all loaded objects would stall every request for 0.1 s.
    gc.freeze()
    # Only now: a client that connects while students are loading is refused at once, as health checks expect.
    listener.listen(2048)
    host, port = listener.getsockname()[:2]
    console.print_text(f"http://{f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()

    supervisor = os.getpid()

    # One text alone is a product of one row, in which threads take twenty times the processor time and gain nothing.
    threadpool_limits(1, user_api="blas")

    def work(worker: int) -> None:
        for served in loaded:
            served.predictor.set_threads(max(1, threads // config.workers))
            if served.recent is not None:
                served.recent.of_worker(worker)
        metrics.of_worker(worker)
        _serve_here(app, listener, supervisor if config.workers > 1 else None)

    if config.workers == 1:
        work(0)
    else:
        _watch(work, config.workers)
    # Otherwise libraries report leaked objects at exit.
    gc.unfreeze()


def _one_thread(runs: Sequence[str]) -> int:
    """Keeps torch to one thread until the workers are forked, and returns its usual number of threads."""
    if not any(Path(run).is_dir() for run in runs):
        return os.cpu_count() or 1
    import torch

    threads = torch.get_num_threads()
    # A fork copies no OpenMP threads, and workers would wait for them forever.
    torch.set_num_threads(1)
    return threads


def _problems(config: ServeSettings) -> list[str]:
    names = [name for run in config.runs for name in names_of(Path(run))]
    problems = [f"{name!r} is the name of two runs" for name in sorted({n for n in names if names.count(n) > 1})]
    for run in map(Path, config.runs):
        if not run.exists():
            there = [path.parent.name for path in run.parent.glob("*/config.json")]
            problems.append(f"{run}: no such folder or file. {did_you_mean(run.name, there)}")
        elif run.is_dir() and importlib.util.find_spec("torch") is None:
            problems.append(
                f"{run}: is a folder, which needs torch, and torch is not installed. Serve a file of the student. "
                f"Write it where torch is: distill export {run} --file {run.name}.distill"
            )
    if config.workers > 1 and any(Path(run).is_dir() for run in config.runs) and _has_gpu():
        problems.append(f"--workers {config.workers}: a GPU supports one process. Use --workers 1.")
    return problems


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _bound(config: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    # Otherwise a restarted server could not bind for minutes, while old connections are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--host {config.host} --port {config.port}: cannot listen there: {error}") from error
    return listener


def server_of(app: Any, **options: Any) -> uvicorn.Server:
    """Returns a Uvicorn server with only the features that are needed here.

    Args:
        app: an ASGI application.
        options: further options of `uvicorn.Config`.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            **options,
        )
    )


def _serve_here(app: App, listener: socket.socket, parent: int | None = None) -> None:
    """Serves in this process until a signal arrives or its parent process ends."""

    async def leave_with_parent() -> None:
        server.should_exit |= parent is not None and os.getppid() != parent

    server = server_of(app, callback_notify=leave_with_parent, timeout_notify=1)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn has its own handlers while it runs and raises the signals again at its end.
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    server.run(sockets=[listener])


def _watch(work: Callable[[int], None], workers: int) -> None:
    """Keeps so many worker processes running until a signal arrives, which is passed on to them."""
    running: dict[int, int] = {}  # worker by process
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for process in running:
            # The worker has just ended by itself.
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def start(worker: int) -> None:
        # Blocked until the child is in `running`: a signal in between would never reach it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        if not stopping:
            running[_forked(work, worker)] = worker
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    for worker in range(workers):
        start(worker)
    while running:
        process, status = os.wait()
        worker = running.pop(process)
        if not stopping:
            console.warn(f"worker {worker} has ended ({os.waitstatus_to_exitcode(status)}). Another worker replaces it")
            # A worker that fails at once would otherwise be forked thousands of times a second.
            time.sleep(1)
            start(worker)


def _forked(work: Callable[[int], None], worker: int) -> int:
    """Forks a worker. Its signals are blocked until it has handlers of its own."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work(worker)
        code = 0
    except Exception:  # noqa: BLE001  (a forked child has no caller that could report it)
        traceback.print_exc()
    finally:
        # Never returns into the parent's code, which would run its `finally` blocks a second time.
        os._exit(code)
