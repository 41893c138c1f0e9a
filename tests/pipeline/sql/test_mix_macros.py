from collections.abc import Iterator
from math import log

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

from pipeline.sql.database import add_macros

Lists = list[list[float]]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        yield connection


def value(connection: duckdb.DuckDBPyConnection, expression: str, *parameters: object) -> list[float]:
    return list(connection.execute(f"select {expression}", parameters).fetchall()[0][0])


def probabilities(logits: list[float]) -> list[float]:
    return [float(x) for x in np.exp(logits)]


@st.composite
def teachers(draw: st.DrawFn) -> tuple[Lists, list[float]]:
    """A few teachers of a few classes, and their weights."""
    width, count = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    row = st.lists(st.floats(-500, 500, width=32), min_size=width, max_size=width)
    return draw(st.lists(row, min_size=count, max_size=count)), draw(
        st.lists(st.floats(0.01, 100), min_size=count, max_size=count)
    )


def test_a_mixture_by_hand(connection: duckdb.DuckDBPyConnection) -> None:
    # 3 : 1 and 1 : 1. The level of the second teacher's logits has no effect
    even = value(connection, "mix([[ln(3), 0], [7, 7]], [1, 1])")
    assert probabilities(even) == pytest.approx([5 / 8, 3 / 8])
    weighted = value(connection, "mix([[ln(3), 0], [7, 7]], [0.6, 0.2])")
    assert probabilities(weighted) == pytest.approx([11 / 16, 5 / 16])


def test_probabilities_are_averaged_and_not_logits(connection: duckdb.DuckDBPyConnection) -> None:
    mixed = probabilities(value(connection, "mix([[100, 0], [0, ln(4)]], [1, 1])"))
    assert mixed == pytest.approx([(1 + 0.2) / 2, 0.8 / 2])  # the mean of the logits would be sure of the first class


@given(drawn=teachers())
def test_a_mixture_is_what_numpy_says(connection: duckdb.DuckDBPyConnection, drawn: tuple[Lists, list[float]]) -> None:
    lists, weights = drawn
    log_weights = np.log(np.array(weights) / np.sum(weights))[:, None]
    expected = logsumexp(log_softmax(np.array(lists), axis=1) + log_weights, axis=0)
    assert value(connection, "mix(?::float[][], ?::double[])", lists, weights) == pytest.approx(expected, abs=1e-9)


def test_of_scores_it_is_the_weighted_mean(connection: duckdb.DuckDBPyConnection) -> None:
    assert value(connection, "mix([[5], [1]], [3, 1])") == pytest.approx([4])


def test_extreme_teachers_stay_finite(connection: duckdb.DuckDBPyConnection) -> None:
    assert value(connection, "mix([[1000, -1000], [-1000, 1000]], [1, 1])") == pytest.approx([-log(2), -log(2)])
    assert value(connection, "mix([[1000, -1000]], [1])") == pytest.approx([0, -2000])


def test_a_vote_by_hand(connection: duckdb.DuckDBPyConnection) -> None:
    # two for the first class, with 3/4 and 9/10. The third does not count
    lists = "[[ln(3), 0], [0, 50], [ln(9), 0]]"
    assert probabilities(value(connection, f"vote({lists})")) == pytest.approx([0.825, 0.175])


def test_of_tied_classes_all_count(connection: duckdb.DuckDBPyConnection) -> None:
    # two votes for class 0, two for class 1, one for class 2
    lists = "[[ln(2), 0, 0], [0, ln(2), 0], [ln(2), 0, 0], [0, ln(2), 0], [0, 0, 90]]"
    assert probabilities(value(connection, f"vote({lists})")) == pytest.approx([3 / 8, 3 / 8, 2 / 8])
    assert value(connection, "vote([[1, 0], [0, 3]])") == value(connection, "mix([[1, 0], [0, 3]], [1, 1])")


@given(drawn=teachers())
def test_a_vote_is_the_mixture_of_the_majority(
    connection: duckdb.DuckDBPyConnection, drawn: tuple[Lists, list[float]]
) -> None:
    lists = np.array(drawn[0], dtype=np.float32)
    classes = lists.argmax(axis=1)
    votes = (classes[:, None] == classes[None, :]).sum(axis=1)
    kept = log_softmax(lists[votes == votes.max()].astype(np.float64), axis=1)
    expected = logsumexp(kept, axis=0) - np.log(len(kept))
    assert value(connection, "vote(?::float[][])", lists.tolist()) == pytest.approx(expected, abs=1e-9)


def test_a_missing_teacher_makes_nothing_of_the_row(connection: duckdb.DuckDBPyConnection) -> None:
    row = connection.execute("select mix([[1, 2], null], [1, 1]), vote([[1, 2], null, [1, 2]])").fetchall()
    assert row == [(None, None)]


@pytest.mark.parametrize(
    "arguments",
    [
        "[[1, 2]], [1, 1]",
        "[[1, 2], [3, 4]], [1]",
        "[[1, 2], [3, 4]], [1, 0]",
        "[[1, 2], [3, 4]], [3, -1]",
        "[[1, 2], [3, 4]], [1, null]",
        "[[1, 2], [3, 4]], [1, 'nan'::double]",
        "[[1, 2], [3, 4]], [1, 'inf'::double]",
        "[[1, 2], [3]], [1, 1]",
    ],
)
def test_what_does_not_fit_is_refused(connection: duckdb.DuckDBPyConnection, arguments: str) -> None:
    with pytest.raises(duckdb.Error, match="mix: "):
        value(connection, f"mix({arguments})")
