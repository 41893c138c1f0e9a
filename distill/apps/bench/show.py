"""The figures of a benchmark: for people a table and a chart for each measure, for machines JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import torch

from distill.apps.bench.bars import log_bars
from distill.apps.bench.machine import processor
from distill.apps.bench.run import ComputePlace, Speed
from distill.apps.bench.sentences import MEASURES
from distill.result import Table
from pipeline import console

NARROWEST_BAR, OTHER_COLUMNS = 12, 70  # characters


def speed_tables(speeds: Sequence[Speed]) -> list[Table]:
    """Returns a table for each measure and kind of device; bars and ratios are of its last column."""
    tables = []
    for measure, title in MEASURES.items():
        for device in dict.fromkeys(speed.device for speed in speeds):
            here = [speed for speed in speeds if speed.measure == measure and speed.device == device]
            places = list(dict.fromkeys(speed.place for speed in here))
            tables.append(_table(f"sentences a second, {title}", places, by_model(here)))
    return tables


def as_json(speeds: Sequence[Speed], settings: dict[str, Any]) -> dict[str, Any]:
    """The figures for machines: what was measured on, how it was asked for, and every speed."""
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
            f"{last[0] / rate:,.3g} x",
            bar,
        ]
        for speeds, rate, bar in zip(models, last, bars, strict=True)
    ]
    return Table(["", "weights", *map(str, places), "student is", "(log scale)"], rows, title)


def label(speed: Speed) -> str:
    """Who was timed, in short."""
    return f"{speed.model} {speed.precision}"


def by_model(speeds: Sequence[Speed]) -> list[list[Speed]]:
    """The speeds of each model in each precision, in the order in which they came."""
    names = list(dict.fromkeys((speed.model, speed.precision) for speed in speeds))
    ordered = sorted(speeds, key=lambda speed: names.index((speed.model, speed.precision)))
    return [list(group) for _, group in groupby(ordered, key=lambda speed: (speed.model, speed.precision))]
