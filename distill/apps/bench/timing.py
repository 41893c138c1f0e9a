"""Times models against each other on one core, on all cores and on a GPU. Makes a table and a chart."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.apps.bench.readers import MEASURES, OF_IDS, ROWS, Reader, Sentences, Texts
from distill.result import Table
from pipeline import console
from pipeline.environment import tokenizers_in_parallel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ROUNDS = 5
TURNS = ROUNDS + 3  # including one warm-up and about two turns for finding the size of a turn
Work = Callable[[int], Callable[[], object]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class ComputePlace:
    """A device and a number of threads on which sentences are read.

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
    """The throughput of one reader, by one measure, at one place.

    Attributes:
        measure: a name among `MEASURES`.
        device: ``cpu`` or ``cuda``.
        threads: of the CPU.
        model: who.
        precision: ``fp32`` or ``bf16``.
        num_parameters: of the model.
        rows: sentences per call.
        sentences_per_second: median of `ROUNDS` turns.
        tokens_per_second: of texts, those that the model reads, as the student's tokenizer counts them. None for ids.
        megabytes_per_second: of texts, also where the model reads only their beginning. None for ids.
    """

    measure: str
    device: str
    threads: int
    model: str
    precision: str
    num_parameters: int
    rows: int
    sentences_per_second: float
    tokens_per_second: float | None = None
    megabytes_per_second: float | None = None

    @property
    def place(self) -> ComputePlace:
        """The device and the threads of the measurement."""
        return ComputePlace(self.device, self.threads)


def places() -> list[ComputePlace]:
    """Returns one core, all cores that torch uses (see ``OMP_NUM_THREADS``), and the GPU if there is one."""
    threads = torch.get_num_threads()
    on_cpu = [ComputePlace("cpu", count) for count in sorted({1, threads})]
    return [*on_cpu, ComputePlace("cuda", threads)] if torch.cuda.is_available() else on_cpu


def measure(
    make_readers: Callable[[torch.device], Sequence[Reader]], sentences: Sentences, seconds: float
) -> list[Speed]:
    """Measures the throughput of readers at every place of this machine.

    Args:
        make_readers: returns the readers to time on a device.
        sentences: to be read.
        seconds: the approximate duration of the whole measurement.
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
    """Returns how often `speeds` calls ``advance``."""
    return (ROUNDS + 1) * sum(measure not in OF_IDS or r.encoding is not None for r in readers for measure in MEASURES)


def speeds(
    readers: Sequence[Reader], sentences: Sentences, place: ComputePlace, seconds: float, advance: Callable[[], None]
) -> list[Speed]:
    """Measures the throughput of every reader by every measure, at one place.

    A slow reader gets fewer sentences per call, so that all turns take about the same time.

    Args:
        readers: on the place's device.
        sentences: to be read.
        place: where.
        seconds: the approximate duration.
        advance: called after every timed call.
    """
    measured = []
    with using_threads(place.threads), torch.inference_mode():
        for reader in readers:
            reader.set_threads(place.threads)
        for measure in MEASURES:
            work = {k: made for k, r in enumerate(readers) if (made := _work(r, measure, sentences)) is not None}
            # Every reader gets the same time, not the same work: a slow model would otherwise take most of the
            # benchmark.
            turn = seconds / len(MEASURES) / len(work) / TURNS
            sizes = {k: fitting_rows(make, ROWS, turn) for k, make in work.items()}
            taken = interleaved({str(k): _repeated(work[k], *sizes[k]) for k in work}, ROUNDS, advance)
            for k, (rows, calls) in sizes.items():
                rate = rows * calls / taken[str(k)]
                who = (readers[k].name, readers[k].precision, readers[k].num_parameters)
                amounts = _amounts(readers[k], sentences, measure, rows, rate)
                measured.append(Speed(measure, place.device, place.threads, *who, rows, rate, *amounts))
    return measured


def _amounts(reader: Reader, sentences: Sentences, measure: str, rows: int, rate: float) -> tuple[float, ...]:
    """Returns tokens and megabytes a second for so many texts a second, of which the first rows were read."""
    texts = getattr(sentences, measure)
    if not isinstance(texts, Texts):
        return ()
    read_N = texts.num_tokens[:rows]
    if reader.max_tokens is not None:
        read_N = read_N.clip(max=reader.max_tokens)
    return rate * float(read_N.mean()), rate * texts.num_bytes / 1e6


def _work(reader: Reader, measure: str, sentences: Sentences) -> Work | None:
    """Returns a function that reads the first rows of a measure's sentences, or None if it is not supported."""
    given, encoding = getattr(sentences, measure), reader.encoding
    if isinstance(given, Texts):
        first, second = given.first, given.second
        return lambda rows: lambda: reader.predict(first[:rows], second[:rows] if second else None)
    if encoding is None:
        return None
    return lambda rows: encoding(given.take(range(rows)))


def _repeated(make: Work, rows: int, calls: int) -> Callable[[], None]:
    call = make(rows)

    def run() -> None:
        for _ in range(calls):
            call()

    return run


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Sets the threads of torch and `tokenizers`. The compiled kernels share torch's OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with tokenizers_in_parallel(count > 1):
            yield
    finally:
        torch.set_num_threads(before)


def wall_clock() -> float:
    """Returns seconds of wall-clock time since an arbitrary moment."""
    return time.perf_counter()


def interleaved(
    alternatives: dict[str, Callable[[], object]],
    rounds: int = 5,
    advance: Callable[[], None] = lambda: None,
    clock: Clock = wall_clock,
) -> dict[str, float]:
    """Returns the median seconds of each alternative.

    Each round calls every alternative once, in an order that rotates.

    Args:
        alternatives: the functions to time, by name. A call returns when its work is done, also on a GPU.
        rounds: the number of timed rounds, after one round of warm-up.
        advance: called after every call.
        clock: returns seconds. For work on one thread, the clock of the process leaves out the time of other programs.
    """
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        # Rotating the order spreads slow phases of the machine, such as thermal throttling, over all alternatives.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = clock()
            alternatives[name]()
            # Round 0 warms up caches, allocators and GPU kernels.
            if number:
                seconds[name].append(clock() - start)
            advance()
    return {name: statistics.median(values) for name, values in seconds.items()}


def fitting_rows(
    make: Callable[[int], Callable[[], object]], most: int, seconds: float, clock: Clock = wall_clock
) -> tuple[int, int]:
    """Finds how much work fills a turn of so many seconds. The trials also serve as a warm-up.

    Args:
        make: prepares work on a number of rows.
        most: the maximum number of rows.
        seconds: the duration of a turn.
        clock: returns seconds.

    Returns: Rows per call, which are a power of two or ``most``, and calls per turn. Both are at least one.
    """
    rows = 1
    make(rows)()
    while True:
        call = make(rows)
        start = clock()
        call()
        took = clock() - start
        # Doubling stops before a call could take longer than its turn.
        if rows >= most or 2 * took > seconds:
            return rows, max(1, int(seconds / took))
        rows = min(2 * rows, most)


def processor() -> str:
    """The processor's name, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "this processor")


NARROWEST_BAR, OTHER_COLUMNS = 12, 92  # characters
EIGHTHS = " ▏▎▍▌▋▊▉"
WIDTH, HEIGHT_OF_A_MEASURE, HEIGHT_OF_A_BAR = 8.0, 0.7, 0.14  # inches


def speed_tables(speeds: Sequence[Speed]) -> list[Table]:
    """Returns a table for each measure and kind of device. Bars and ratios refer to its last column."""
    tables = []
    for measure, title in MEASURES.items():
        for device in dict.fromkeys(speed.device for speed in speeds):
            here = [speed for speed in speeds if speed.measure == measure and speed.device == device]
            places = list(dict.fromkeys(speed.place for speed in here))
            tables.append(_table(f"sentences a second, {title}", places, by_model(here)))
    return tables


def as_json(speeds: Sequence[Speed], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures for programs: the machine, the command, and every speed."""
    machine = {
        "processor": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
    }
    return {"machine": machine, **settings, "speeds": [asdict(speed) for speed in speeds]}


def _table(title: str, places: Sequence[ComputePlace], models: Sequence[Sequence[Speed]]) -> Table:
    last = [speeds[-1].sentences_per_second for speeds in models]
    bars = log_bars(last, max(NARROWEST_BAR, console.stdout.width - OTHER_COLUMNS))
    rows = [
        [
            label(speeds[0]),
            f"{speeds[0].num_parameters / 1e6:.1f} M",
            *(round(speed.sentences_per_second) for speed in speeds),
            *_amounts_shown(speeds[-1]),
            f"{last[0] / rate:,.3g} x",
            bar,
        ]
        for speeds, rate, bar in zip(models, last, bars, strict=True)
    ]
    amounts = ["tokens/s", "MB/s"] if _amounts_shown(models[0][-1]) else []
    return Table(["", "weights", *map(str, places), *amounts, "student is", "(log scale)"], rows, title)


def _amounts_shown(speed: Speed) -> list[str]:
    if speed.tokens_per_second is None:
        return []
    return [f"{speed.tokens_per_second:,.0f}", f"{speed.megabytes_per_second:,.3g}"]


def label(speed: Speed) -> str:
    """Returns the short name of a model and its precision."""
    return f"{speed.model} {speed.precision}"


def by_model(speeds: Sequence[Speed]) -> list[list[Speed]]:
    """The speeds of each model in each precision, in the order in which they came."""
    names = list(dict.fromkeys((speed.model, speed.precision) for speed in speeds))
    ordered = sorted(speeds, key=lambda speed: names.index((speed.model, speed.precision)))
    return [list(group) for _, group in groupby(ordered, key=lambda speed: (speed.model, speed.precision))]


def log_bars(values: Sequence[float], width: int = 30) -> list[str]:
    """Returns a bar for each value. The bar of the largest value is ``width`` characters wide.

    The scale begins at the last power of ten below the smallest value, so that every bar can be seen.

    Args:
        values: all above 0.
        width: of the longest bar.
    """
    low = ceil(log10(min(values))) - 1
    # Speeds differ by factors of a thousand, which only a logarithmic scale can show.
    scale = width / (log10(max(values)) - low)
    return [_bar((log10(value) - low) * scale) for value in values]


def _bar(length: float) -> str:
    eighths = max(1, round(8 * length))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def draw_speeds(path: Path, speeds: Sequence[Speed]) -> None:
    """Draws bars on a logarithmic scale for every measure, model and place, into an .svg or .png file."""
    places = list(dict.fromkeys(speed.place for speed in speeds))

    def draw(figure: "Figure") -> None:
        all_axes = figure.subplots(len(MEASURES), 1, sharex=True)
        for axes, (measure, title) in zip(all_axes, MEASURES.items(), strict=True):
            _draw_measure(axes, [speed for speed in speeds if speed.measure == measure], places)
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        all_axes[-1].set_xlabel("sentences a second")
        all_axes[0].legend(ncols=len(places), loc="lower right", bbox_to_anchor=(1, 1))

    height = len(MEASURES) * HEIGHT_OF_A_MEASURE + len(speeds) * HEIGHT_OF_A_BAR
    from distill.apps.svg import write_picture

    write_picture(path, (WIDTH, height), draw)


def _draw_measure(axes: "Axes", speeds: Sequence[Speed], places: Sequence[object]) -> None:
    models = by_model(speeds)
    height = 0.84 / len(places)
    from distill.apps.svg import FAINT, SERIES

    for number, (place, colour) in enumerate(zip(places, SERIES, strict=False)):
        for row, group in enumerate(models):
            for speed in (one for one in group if one.place == place):
                rate = speed.sentences_per_second
                bar = axes.barh(row + (number + 0.5) * height - 0.42, rate, height, color=colour)
                axes.bar_label(bar, [f"{rate:,.0f}"], padding=3, fontsize=7)
                bar.set_label(str(place) if row == 0 else "_")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.1, y=0.02)
    axes.set_yticks(range(len(models)), [label(group[0]) for group in models])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, alpha=0.35)
