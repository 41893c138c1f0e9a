"""JSON as Arrow reads it is what Python reads, or Python reads it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.sources.json_rows import NULL_BETWEEN, array_bytes, array_rows, array_table, num_object_lines, quick_array
from pipeline.sources.line_rows import count_lines
from pipeline.sources.row_files import open_rows

OBJECTS = [
    '{"a": 1}',
    '{"a": "x", "b": null}',
    '{"b": 0.5, "a": "},{"}',
    '{"a": "2020-01-01", "b": 7}',
    '{"b": [1, 2]}',
    '{"b": [], "c": true}',
    '{"b": ["2020-01-01"]}',
    '{"c": {"d": 1}}',
    '{"b": 9007199254740993}',
    '{"b": 12345678901234567890}',
    '{"a": 1, "a": 2}',
    '{"a": "\\ud800"}',
    '{"a": "\\ud83d\\ude00"}',
    '{"b": NaN}',
    '{"b": 1e999}',
    "{\n}",
]
BETWEEN = [", ", ",", ",\n", " ,\t", "\n", "", ",\x0b", ", null,", " null ", "],[", ","]


def slow(path: Path) -> pa.Table:
    return array_table(path, array_rows(path, array_bytes(path)), None, None)


@st.composite
def arrays(draw: st.DrawFn) -> str:
    comma = draw(st.sampled_from(BETWEEN[:4]))
    between = st.just(comma) | st.sampled_from(BETWEEN)
    objects = draw(st.lists(st.tuples(st.sampled_from(OBJECTS), between), max_size=5))
    text = "".join(part for pair in objects for part in pair)
    return draw(st.sampled_from(["[", " [\n", "\ufeff["])) + (
        text.removesuffix(comma) + draw(st.sampled_from(["]", "]\n", "", ",]"]))
    )


@settings(max_examples=300, deadline=None)
@given(text=arrays())
@example(text='[{"a": 1} {"a": 2}]')
@example(text='[{"a": "x},{y"},{"a": "z"}]')
def test_an_array_is_read_as_python_reads_it(text: str, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.json"
    path.write_text(text, encoding="utf-8")
    table = quick_array(array_bytes(path))
    if table is not None:
        expected = slow(path)
        assert table.schema == expected.schema
        assert str(table.to_pylist()) == str(expected.to_pylist())  # NaN is not equal to itself


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_arrays_as_programs_write_them_are_read_quickly(indent: int | None, separators: Any, tmp_path: Path) -> None:
    rows = [{"text": f"{k} größer, {{}} \n", "label": k % 2, "score": k / 3, "tags": ["a"] * k} for k in range(5)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=indent, separators=separators))
    table = quick_array(array_bytes(path))
    assert table is not None
    assert table.to_pylist() == rows
    assert open_rows(path).table(["label", "text"]).to_pylist() == [
        {k: row[k] for k in ("label", "text")} for row in rows
    ]


@given(
    lines=st.lists(st.sampled_from(OBJECTS[:4]), min_size=1), between=st.sampled_from(["\n", " null\n", "\r\n", "\n\n"])
)
@example(lines=['{"a": 1} null', '{"a": 2'], between="\n")
@example(lines=['{"a": 1} null {"a": 2}'], between="\n")
def test_lines_are_counted_where_arrow_can_read_them(lines: list[str], between: str) -> None:
    data = between.join(lines).encode()
    count = num_object_lines(data)
    if count:
        assert count == count_lines(data)
        assert all(line.startswith(b"{") for line in data.splitlines())
        assert not NULL_BETWEEN.search(data)
    else:
        assert between in (" null\n", "\n\n") or "null" in lines[0]


def test_what_is_wrong_is_named_as_python_names_it(tmp_path: Path) -> None:
    for text, what in [
        ('[{"a": 1}, {"a": "x"}]', "line 2"),
        ('[{"a": "\\ud800"}]', "surrogate"),
        ('[{"a": 1, "a": 2}]', "'a'"),
    ]:
        path = tmp_path / "rows.json"
        path.write_text(text)
        with pytest.raises(DataError, match=what):
            open_rows(path).table()
