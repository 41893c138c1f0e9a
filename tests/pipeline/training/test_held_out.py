import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.training.held_out import held_out_rows


@given(num_rows=st.integers(2, 500), share=st.floats(0.01, 0.99))
def test_so_many_of_the_rows_are_held_out_each_once(num_rows: int, share: float) -> None:
    count = round(share * num_rows)
    if not 0 < count < num_rows:
        with pytest.raises(DataError, match=f"that is {count} of {num_rows} training rows"):
            held_out_rows(num_rows, share)
        return
    rows = held_out_rows(num_rows, share)
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < num_rows
    assert rows.tolist() == held_out_rows(num_rows, share).tolist()


def test_they_come_from_everywhere() -> None:
    rows = held_out_rows(10_000, 0.1)
    assert np.histogram(rows, 10, (0, 10_000))[0].min() > 70
    assert rows.tolist() != held_out_rows(10_001, 0.1).tolist()
