"""Texts without a visible character are found by one rule, with Arrow and without it."""

import sys
import unicodedata

import pyarrow as pa
import pytest

from pipeline.sources.columns import blank
from student.texts import has_text

# Letters of every category, of which RE2 and Python may know other Unicode versions: only old characters are compared.
CHARACTERS = [chr(k) for k in range(min(sys.maxunicode, 0x3000)) if unicodedata.ucd_3_2_0.category(chr(k)) != "Cn"]


def test_both_rules_agree_on_every_character() -> None:
    expected = [not one for one in blank(pa.array(CHARACTERS)).to_pylist()]
    assert [has_text([one]) for one in CHARACTERS] == expected
    assert not all(expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([""], False),
        ([" \u200b\n\u00a0"], False),
        (["", "x"], True),
        ([" ", ""], False),
        ([["a"]], True),
        ([" ."], True),
    ],
)
def test_an_input_has_text_if_one_of_its_texts_has(row: list[object], expected: bool) -> None:
    assert has_text(row) is expected
