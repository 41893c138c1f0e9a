import re
from collections.abc import Iterator
from math import log

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax

from pipeline.sql.database import add_macros, macros

logit_lists = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*[st.lists(st.floats(-1000, 1000, width=32), min_size=size, max_size=size)] * 2)
)
WITH_NAMES, NAMED = re.compile(r"-?inf|nan"), r"'\g<0>'::float"  # as SQL writes them


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        add_macros(connection)
        yield connection


CREATED = "select function_name from duckdb_functions() where not internal"


def created(query: str) -> set[str]:
    """The macros that a new database has for a query."""
    with duckdb.connect() as connection:
        add_macros(connection, query)
        return {name for (name,) in connection.execute(CREATED).fetchall()}


@pytest.mark.parametrize("name", macros())
def test_a_query_has_the_macro_that_it_names_and_those_that_this_one_calls(name: str) -> None:
    there = created(f"select {name.title()}(x) from t")
    assert name in there
    called = {word for one in there for word in re.findall(r"(\w+)\(", macros()[one].statement)}
    assert called & macros().keys() <= there


def test_a_query_that_names_no_macro_has_none() -> None:
    assert created("select x from t") == set()


def test_each_macro_is_known_as_a_table_or_a_value(connection: duckdb.DuckDBPyConnection) -> None:
    kinds = CREATED.replace("function_name", "function_name, function_type")
    found = {name: kind == "table_macro" for name, kind in connection.execute(kinds).fetchall()}
    assert found == {name: macro.makes_table for name, macro in macros().items()}


def values(connection: duckdb.DuckDBPyConnection, p: list[float], q: list[float]) -> dict[str, object]:
    query = (
        "with t as (select ?::float[] as p, ?::float[] as q) select log_sum_exp(p) as log_sum_exp, "
        "softmax(p) as softmax, argmax(p) as argmax, entropy(p) as entropy, margin(p) as margin, kl(p, q) as kl from t"
    )
    result = connection.execute(query, [p, q])
    return dict(zip([column[0] for column in result.description], result.fetchall()[0], strict=True))


@settings(deadline=None)
@given(lists=logit_lists)
def test_macros_say_what_numpy_says(
    connection: duckdb.DuckDBPyConnection, lists: tuple[list[float], list[float]]
) -> None:
    p, q = np.array(lists[0]), np.array(lists[1])
    probabilities = softmax(p)
    first, second = np.sort(probabilities)[::-1][:2]
    expected = {
        "log_sum_exp": logsumexp(p),
        "argmax": p.argmax(),
        "entropy": -(probabilities * log_softmax(p)).sum(),
        "margin": first - second,
        "kl": (probabilities * (log_softmax(p) - log_softmax(q))).sum(),
    }
    got = values(connection, *lists)
    assert got.pop("softmax") == pytest.approx(probabilities, abs=1e-12)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_extreme_logits(connection: duckdb.DuckDBPyConnection) -> None:
    got = values(connection, [1000, -1000, 0], [-1000, 1000, 0])
    assert got.pop("softmax") == [1, 0, 0]
    assert got == pytest.approx({"log_sum_exp": 1000, "argmax": 0, "entropy": 0, "margin": 1, "kl": 2000})


def test_known_answers(connection: duckdb.DuckDBPyConnection) -> None:
    got = values(connection, [log(3), 0], [0, 0])
    assert got["softmax"] == pytest.approx([0.75, 0.25])
    assert got["margin"] == pytest.approx(0.5)
    assert got["entropy"] == pytest.approx(0.75 * log(4 / 3) + 0.25 * log(4))
    assert got["kl"] == pytest.approx(log(2) - 0.75 * log(4 / 3) - 0.25 * log(4))
    undecided = values(connection, [7, 7, 7, 7], [1, 1, 1, 1])
    assert undecided["entropy"] == pytest.approx(log(4))
    assert (undecided["margin"], undecided["argmax"], undecided["kl"]) == pytest.approx((0, 0, 0))


def test_lists_of_fixed_length_and_missing_ones(connection: duckdb.DuckDBPyConnection) -> None:
    query = "select argmax([1, 3]::float[2]), entropy([5]::float[1]), softmax(null::float[]), argmax(null::float[])"
    assert connection.execute(query).fetchone() == (1, 0, None, None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("entropy([-inf, 0])", 0),
        ("entropy([-inf, 0, 0])", log(2)),
        ("kl([-inf, 0], [0, 0])", log(2)),
        ("kl([0, 0], [-inf, 0])", float("inf")),
        ("kl([-inf, 0], [-inf, 0])", 0),
        ("margin([-inf, 0])", 1),
        ("expectation([-inf, 0], [1, 5])", 5),
        ("label_kl([-inf, 0], [0, 0])", log(2) / 2),
        ("label_kl([inf, 0], [inf, 0])", 0),
        ("softmax([-inf, 0])", [0, 1]),
        ("mix([[-inf, 0], [-inf, 0]], [1, 1])", [float("-inf"), 0]),
        ("mix_labels([[-inf, inf], [-inf, inf]], [1, 1])", [float("-inf"), float("inf")]),
        ("vote([[-inf, 0], [-inf, 0], [0, -1]])", [float("-inf"), 0]),
    ],
)
def test_a_probability_of_zero_is_a_logit_of_minus_infinity(
    connection: duckdb.DuckDBPyConnection, expression: str, expected: object
) -> None:
    got = connection.execute(f"select {WITH_NAMES.sub(NAMED, expression)}").fetchone()
    assert got == (pytest.approx(expected),)


@pytest.mark.parametrize("missing", ["nan", "null"])
@pytest.mark.parametrize(
    "expression",
    [
        "softmax([?, 0])",
        "log_sum_exp([?, 0])",
        "argmax([?, 0])",
        "entropy([?, 0])",
        "margin([?, 0, 1])",
        "kl([?, 0], [0, 0])",
        "kl([0, 0], [?, 0])",
        "sigmoid([?])[1]",
        "likely_labels([?, 1])",
        "label_kl([?, 0], [0, 0])",
        "label_kl([0, 0], [?, 0])",
        "mix([[?, 0], [0, 0]], [1, 1])",
        "mix([[?], [0]], [1, 1])",
        "mix_labels([[?, 0], [0, 0]], [1, 1])[1]",
        "vote([[?, 0], [1, 0], [2, 0]])",
        "expectation([?, 0], [1, 5])",
    ],
)
def test_no_answer_without_every_logit(connection: duckdb.DuckDBPyConnection, expression: str, missing: str) -> None:
    query = f"select {WITH_NAMES.sub(NAMED, expression.replace('?', missing))}"
    assert connection.execute(query).fetchone() == (None,)


@settings(deadline=None)
@given(lists=logit_lists)
def test_label_kl_is_what_scipy_says(
    connection: duckdb.DuckDBPyConnection, lists: tuple[list[float], list[float]]
) -> None:
    p, q = np.array(lists)
    expected = (expit(p) * (log_expit(p) - log_expit(q)) + expit(-p) * (log_expit(-p) - log_expit(-q))).mean()
    got = connection.execute("select label_kl(?::float[], ?::float[])", list(lists)).fetchone()
    assert got == (pytest.approx(expected, rel=1e-9, abs=1e-9),)


@settings(deadline=None)
@given(lists=logit_lists)
def test_expectation_is_the_mean_of_the_values(
    connection: duckdb.DuckDBPyConnection, lists: tuple[list[float], list[float]]
) -> None:
    logits, values = lists
    got = connection.execute("select expectation(?::float[], ?::double[])", [logits, values]).fetchone()
    assert got is not None
    assert got[0] == pytest.approx(float(softmax(np.array(logits)) @ np.array(values)), abs=1e-9, rel=1e-9)


def test_expectation_by_hand(connection: duckdb.DuckDBPyConnection) -> None:
    query = f"select expectation([{log(3)}, 0]::float[], [1, 5]), expectation(null::float[], [1, 5])"
    assert connection.execute(query).fetchone() == (pytest.approx(0.75 * 1 + 0.25 * 5), None)
