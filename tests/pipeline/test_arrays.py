import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Ragged, ragged, stacked

ROWS = [[1, 2, 3], [], [4], [5, 6]]
lists_of_ids = st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=8)


def lists(part: Ragged) -> list[list[int]]:
    return [part[row].tolist() for row in range(len(part))]


def test_a_row_is_its_ids() -> None:
    rows = Ragged.of(ROWS)
    assert [rows[k].tolist() for k in range(4)] == ROWS
    with pytest.raises(IndexError):
        rows[4]


@given(rows=lists_of_ids.filter(len), data=st.data())
def test_take_is_picking_from_the_lists(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    taken = Ragged.of(rows).take(chosen)
    assert lists(taken) == [rows[k] for k in chosen]
    assert lists(taken.take(np.arange(len(chosen))[::-1])) == [rows[k] for k in reversed(chosen)]
    assert taken.flat.dtype == taken.offsets.dtype == np.dtype(np.int64)


@given(rows=lists_of_ids, data=st.data())
def test_rows_between_two_are_those_of_the_lists(rows: list[list[int]], data: st.DataObject) -> None:
    start, stop = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    part = Ragged.of(rows).between(start, stop)
    assert lists(part) == rows[start:stop]
    assert part.offsets[0] == 0


@given(lists_of_ids)
def test_column_holds_the_lists_and_reads_back(rows: list[list[int]]) -> None:
    column = Ragged.of(rows).column(pa.uint16())
    assert column.type == pa.list_(pa.uint16())
    assert column.to_pylist() == rows
    column.validate(full=True)
    assert lists(ragged(pa.chunked_array([column]))) == rows


def test_column_refuses_ids_that_its_type_cannot_hold() -> None:
    assert Ragged.of([[65536]]).column(pa.uint32()).to_pylist() == [[65536]]
    for wrong in (65536, -1):
        with pytest.raises(pa.ArrowInvalid, match=f"{wrong} not in range"):
            Ragged.of([[wrong]]).column(pa.uint16())


@given(st.lists(lists_of_ids, min_size=1, max_size=4))
def test_stacked_is_one_list_after_the_other(parts: list[list[list[int]]]) -> None:
    together = stacked([Ragged.of(rows) for rows in parts])
    assert lists(together) == [row for rows in parts for row in rows]
    assert len(together) == sum(map(len, parts))
