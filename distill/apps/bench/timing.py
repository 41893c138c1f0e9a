"""Timing readers against each other: every one in its turn, on one core, on all, on a GPU."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from distill.apps.bench.sentences import MEASURES, ROWS, Sentences
from distill.apps.bench.students import Reader
from pipeline import console
from pipeline.environment import tokenizers_in_parallel

ROUNDS = 5
TURNS = ROUNDS + 3  # with the warm-up, and the time to find out how much fills a turn
Work = Callable[[int], Callable[[], object]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class ComputePlace:
    """A device and a number of threads, with which sentences are read.

    Attributes:
        device: ``cpu`` or ``cuda``.
        threads: of the CPU.
    """

    device: str
    threads: int

    def __str__(self) -> str:
        if self.device != "cpu":
            return "GPU"
        return "1 core" if self.threads == 1 else f"{self.threads} cores"


@dataclass(frozen=True)
class Speed:
    """Sentences a second of one reader, by one measure, at one place.

    Attributes:
        measure: a name among `MEASURES`.
        device: where: ``cpu`` or ``cuda``.
        threads: of the CPU.
        model: who.
        precision: ``fp32`` or ``bf16``.
        num_parameters: of the model.
        rows: sentences of a call.
        sentences_per_second: median of `ROUNDS` turns.
    """

    measure: str
    device: str
    threads: int
    model: str
    precision: str
    num_parameters: int
    rows: int
    sentences_per_second: float

    @property
    def place(self) -> ComputePlace:
        """The device and threads it was measured with."""
        return ComputePlace(self.device, self.threads)


def places() -> list[ComputePlace]:
    """One core, all that torch would use (``OMP_NUM_THREADS`` decides), and the GPU if there is one."""
    threads = torch.get_num_threads()
    on_cpu = [ComputePlace("cpu", count) for count in sorted({1, threads})]
    return [*on_cpu, ComputePlace("cuda", threads)] if torch.cuda.is_available() else on_cpu


def measure(
    make_readers: Callable[[torch.device], Sequence[Reader]], sentences: Sentences, seconds: float
) -> list[Speed]:
    """How fast readers are at every place of this machine.

    Args:
        make_readers: makes those that are to be timed on a device.
        sentences: to be read.
        seconds: about how long it may take in all.
    """
    measured: list[Speed] = []
    all_places = places()
    for device in dict.fromkeys(place.device for place in all_places):
        console.note(f"making students and peers on {device}")
        readers = make_readers(torch.device(device))
        on_device = [place for place in all_places if place.device == device]
        with console.progress(len(on_device) * num_calls(readers), "benchmark") as bar:
            for place in on_device:
                bar.describe(f"benchmark, {place}")
                measured += speeds(readers, sentences, place, seconds / len(all_places), bar.advance)
    return measured


def num_calls(readers: Sequence[Reader]) -> int:
    """How often `speeds` calls ``advance``."""
    return (ROUNDS + 1) * sum(measure == "text" or r.encoding is not None for r in readers for measure in MEASURES)


def speeds(
    readers: Sequence[Reader], sentences: Sentences, place: ComputePlace, seconds: float, advance: Callable[[], None]
) -> list[Speed]:
    """How fast every reader is by every measure, at one place.

    Whoever is slow reads fewer sentences at a time, so that all get turns of about the same length.

    Args:
        readers: on the place's device.
        sentences: to be read.
        place: where.
        seconds: about how long it may take.
        advance: called after every timed call.
    """
    measured = []
    with using_threads(place.threads), torch.inference_mode():
        for measure in MEASURES:
            work = {k: made for k, r in enumerate(readers) if (made := _work(r, measure, sentences)) is not None}
            turn = seconds / len(MEASURES) / len(work) / TURNS
            sizes = {k: fitting_rows(make, ROWS, turn) for k, make in work.items()}
            taken = interleaved({str(k): _repeated(work[k], *sizes[k]) for k in work}, ROUNDS, advance)
            for k, (rows, calls) in sizes.items():
                who = (readers[k].name, readers[k].precision, readers[k].num_parameters)
                measured.append(Speed(measure, place.device, place.threads, *who, rows, rows * calls / taken[str(k)]))
    return measured


def _work(reader: Reader, measure: str, sentences: Sentences) -> Work | None:
    """What the reader does with the first rows of what is to be read; None if it cannot."""
    if measure == "text":
        first, second = sentences.texts, sentences.seconds
        return lambda rows: lambda: reader.predict(first[:rows], second[:rows] if second else None)
    if reader.encoding is None:
        return None
    ids, encoding = sentences.paper if measure == "paper" else sentences.realistic, reader.encoding
    return lambda rows: encoding(ids.take(range(rows)))


def _repeated(make: Work, rows: int, calls: int) -> Callable[[], None]:
    call = make(rows)

    def run() -> None:
        for _ in range(calls):
            call()

    return run


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Lets torch, whose OpenMP compiled kernels share, and `tokenizers` use so many threads, or one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with tokenizers_in_parallel(count > 1):
            yield
    finally:
        torch.set_num_threads(before)


def wall_clock() -> float:
    """Seconds since some moment, as they pass for everybody."""
    return time.perf_counter()


def interleaved(
    alternatives: dict[str, Callable[[], object]],
    rounds: int = 5,
    advance: Callable[[], None] = lambda: None,
    clock: Clock = wall_clock,
) -> dict[str, float]:
    """Median seconds of each alternative; one call each per round, the order turned every round, one warm-up.

    Args:
        alternatives: what is timed, by name; a call returns when its work is done, on a GPU too.
        rounds: how many are timed.
        advance: called after every call.
        clock: tells seconds; that of the process, for work on one thread, does not mind what else the machine does.
    """
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = clock()
            alternatives[name]()
            if number:
                seconds[name].append(clock() - start)
            advance()
    return {name: statistics.median(values) for name, values in seconds.items()}


def fitting_rows(
    make: Callable[[int], Callable[[], object]], most: int, seconds: float, clock: Clock = wall_clock
) -> tuple[int, int]:
    """How much work fills a turn of so many seconds; trying it out warms up as well.

    Args:
        make: prepares work on a number of rows.
        most: rows that are not exceeded.
        seconds: how long a turn may take.
        clock: tells seconds.

    Returns:
        Rows of a call, a power of two or ``most``, and how many calls make a turn; at least one of each.
    """
    rows = 1
    make(rows)()
    while True:
        call = make(rows)
        start = clock()
        call()
        took = clock() - start
        if rows >= most or 2 * took > seconds:
            return rows, max(1, int(seconds / took))
        rows = min(2 * rows, most)


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "this processor")
