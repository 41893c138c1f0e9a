"""What counts as the same input, in Python and in SQL."""

import pyarrow as pa
import pytest

from pipeline.sql.database import add_macros, connect
from pipeline.text.near_copies import letters, normalized
from pipeline.text.same_input import input_keys, plain_texts

TEXTS = [
    "all is well",
    "ALL IS WELL",
    "  all   is\twell\n",
    "all\u00a0is\u2003well",
    "\ufeffall is w\u200bell",
    "cafe\u0301",
]
OTHERS = [
    "CAF\u00c9",
    "",
    " \n",
    "\u200b",
    "all is well.",
    "cafe",
    "\u0130stanbul",
    "STRASSE",
    "stra\u00dfe",
    "\u039f\u0394\u039f\u03a3",
    "\U0001f469\u200d\U0001f52c",
    "a\x00b\x1fc\x85d",
]


def test_copies_differ_in_capitals_spaces_and_invisible_marks_alone() -> None:
    plain = plain_texts(pa.array([*TEXTS, *OTHERS])).to_pylist()
    assert plain[:5] == ["all is well"] * 5
    assert plain[5] == plain[6] == "caf\u00e9"
    assert plain[7:10] == [""] * 3
    assert len(set(plain[9:])) == len(plain[9:])


def test_sql_has_the_same_rule() -> None:
    texts = pa.table({"t": [*TEXTS, *OTHERS]})
    with connect() as connection:
        add_macros(connection, "plain_text")
        connection.register("texts", texts)
        found = connection.execute("select plain_text(t) from texts").fetchall()
    assert [text for (text,) in found] == plain_texts(texts.column("t")).to_pylist()


def test_copies_are_near_copies() -> None:
    texts = pa.array([*TEXTS, *OTHERS])
    pairs = zip(plain_texts(texts).to_pylist(), letters(normalized(texts)).to_pylist(), strict=True)
    assert len(set(pairs)) == len(set(plain_texts(texts).to_pylist()))


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ((["A b"], None), (["a  B "], None), True),
        ((["ab"], ["c"]), (["a"], ["bc"]), False),
        ((["A"], ["b"]), (["a"], ["B"]), True),
        (([["New", "York"]], None), ([["new", "york"]], None), True),
    ],
)
def test_keys_of_rows(first: tuple[list[str], None], second: tuple[list[str], None], is_same: bool) -> None:
    keys = [input_keys(pa.table({"sentence1": a, "sentence2": b or pa.nulls(1)})) for a, b in (first, second)]
    assert keys[0].equals(keys[1]) == is_same


def test_empty_and_missing_texts_are_no_evidence() -> None:
    pairs = pa.table({"sentence1": [" ", "a", ""], "sentence2": ["\n", "", "b"]})
    assert input_keys(pairs).is_null().to_pylist() == [True, False, False]
    assert input_keys(pa.table({"sentence1": pa.nulls(2), "sentence2": pa.nulls(2)})).null_count == 2
