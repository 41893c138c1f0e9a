"""A small run of the benchmark of row formats: every way reads every format, and none is slower by an order."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.sources.row_files import FORMATS
from tests.benchmarks.row_formats import OF_ARROW, OF_DUCKDB, alternatives

ROWS = 20_000
SLOWER = 20  # times: an array of JSON is read by Python; the machine may be busy


@pytest.mark.parametrize("kind", sorted({*OF_ARROW, *OF_DUCKDB}))
def test_every_format_is_read_about_as_fast_as_by_arrow_or_duckdb(kind: str, tmp_path: Path) -> None:
    seconds = {}
    for name, read in alternatives(tmp_path, kind, ROWS).items():
        table = read()
        assert isinstance(table, pa.Table)
        assert table.num_rows == ROWS, name
        times = []
        for _ in range(3):
            begin = time.process_time()
            read()
            times.append(time.process_time() - begin)
        seconds[name] = min(times)
    ours = seconds.pop("one reader")
    assert ours < SLOWER * min(seconds.values()) + 0.05, seconds


def test_all_formats_are_measured() -> None:
    assert OF_ARROW.keys() | OF_DUCKDB.keys() >= FORMATS.keys()
