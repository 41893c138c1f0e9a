"""One reader: the same files are accepted at once and batch by batch, whatever the format."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.sources import load_source
from pipeline.sources.row_files import FORMATS, ROWS_PER_BATCH, joined_schema, open_rows
from pipeline.tasks.task import Task
from tests.helpers.messages import naming
from tests.helpers.row_formats import write_rows

MANY = ROWS_PER_BATCH + 5


def lines(rows: Sequence[object], end: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)


def written(folder: Path, content: str | bytes, name: str = "train.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def in_batches(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """What is read in two passes: the types of all rows first."""
    rows = open_rows(path)
    schema = joined_schema(table.schema for table in rows.batches(columns))
    return pa.concat_tables(rows.batches(schema.names, schema))


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": k} for k in range(MANY)] + [{"a": 0.5}],  # a number with a part behind the point comes late
        [{"a": None}] * MANY + [{"a": 3}],
        [{"a": []}] * MANY + [{"a": ["x"]}],
        [{"a": {"b": 1}}] * MANY + [{"a": {"c": {"d": "x"}}}],
        [{}] * MANY + [{"a": "late"}],
        [{"a": "x"}] * MANY + [{"b": True}, {}],
        [{"a": float("inf")}, {"a": -1}],
        [{"a": "2020-01-01 00:00:00"}] * 3,  # which pyarrow's own reader would take for times
        [{"a": "\ufeffx\u2028\n", "b": [[1], [2.5]]}],
    ],
)
def test_json_lines_are_the_same_at_once_and_in_batches(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + lines(rows, "\r\n\n"))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = open_rows(path).table()
    assert table.column_names == names
    assert in_batches(path, names).to_pylist() == table.to_pylist()
    for row, expected in zip(table.to_pylist(), rows, strict=True):
        assert {key: without_nulls(value) for key, value in row.items() if value is not None} == without_nulls(expected)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return value


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"a": "x"}, {"b": 1, "a": 5}], 2),
        ([{"a": "x"}] * MANY + [{"a": 5}], MANY + 1),
        ([{"a": None}] * MANY + [{"a": [1]}, {"a": {"b": 1}}], MANY + 2),
        ([{"a": True}, {"a": 1}], 2),
        ([{"a": 1}, {"a": 2**70}], 2),
    ],
)
def test_a_value_of_another_type_is_named_by_its_line(rows: list[dict[str, Any]], line: int, tmp_path: Path) -> None:
    path = written(tmp_path, lines(rows))
    message = rf"train\.jsonl, line {line}: 'a' is "
    with pytest.raises(DataError, match=message):
        open_rows(path).table()
    with pytest.raises(DataError, match=message):
        in_batches(path, ["a"])


def test_only_wanted_columns_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("a,b\n1,x\n")
    (tmp_path / "rows.tsv").write_text("a\tb\n1\tx\n")
    (tmp_path / "rows.jsonl").write_text('{"a": 1, "b": "x"}\n{"a": "of another type", "b": null}\n')
    for kind in ("parquet", "csv", "tsv", "jsonl"):
        rows = open_rows(tmp_path / f"rows.{kind}")
        assert rows.names == ["a", "b"]
        assert rows.table(["b"]).to_pylist()[:1] == [{"b": "x"}]
    assert {f".{kind}" for kind in ("parquet", "csv", "tsv", "jsonl", "txt")} < FORMATS.keys()


def test_a_text_is_a_column_of_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffone\r\n\ntwo", "rows.txt")
    assert open_rows(path).table().to_pydict() == {"sentence1": ["one", "", "two"]}
    assert open_rows(path, line_column="text").names == ["text"]


def test_rows_of_a_task_are_read_by_the_same_reader(tmp_path: Path) -> None:
    written(
        tmp_path, "\ufeff" + lines([{"text": "a", "label": 1.0, "more": float("nan")}, {"text": "b", "label": None}])
    )
    task = Task.model_validate(
        {
            "name": "mine",
            "type": "classification",
            "columns": {"sentence1": "text", "label": "label"},
            "labels": ["no", "yes"],
            "metrics": ["accuracy"],
            "splits": {"train": None},
        }
    )
    rows = load_source(task, tmp_path).splits["train"]
    assert rows.select(["source_row", "sentence1", "label"]).to_pydict() == {
        "source_row": [0, 1],
        "sentence1": ["a", "b"],
        "label": [1, None],
    }


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != ".txt"])
def test_a_file_of_no_bytes_is_refused_in_every_format(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        open_rows(written(tmp_path, "", f"rows{kind}"))


def test_arrow_reads_lines_as_python_does_or_leaves_them_to_it(tmp_path: Path) -> None:
    first = [{"a": f"text {k}", "b": 1.5, "c": [k, None]} for k in range(3000)]  # a block and more, so types are known
    good = [
        *(
            '{"a": "x\\u00e9", "b": 2, "c": []}',
            '{"b": NaN}',
            '{"c": null, "d": {"e": [1]}}',
            "{}",
            '{"a": "\\ud83d\\ude00"}',
        ),
        '{"a": "} null {", "b": -0.5}',
    ]
    path = written(tmp_path, lines(first) + "\n".join(good))
    expected = [json.loads(line) for line in good]
    rows = open_rows(path).table(["a", "b", "c"]).to_pylist()[3000:]
    assert [repr(row) for row in rows] == [
        repr({name: row.get(name) for name in "abc"}) for row in map(floats, expected)
    ]


def floats(row: dict[str, Any]) -> dict[str, Any]:
    return row | ({"b": float(row["b"])} if "b" in row else {})


@pytest.mark.parametrize(
    "line",
    [
        *(
            '{"a": "x"} {"a": "y"}',
            '{"a": "x"} null',
            "null",
            "3",
            '["a"]',
            '{"a": 5}',
            '{"a": "x"},',
            '{"a": "\\ud83d"}',
        ),
        *('{"a": "x", "a": "y"}', '{"a": "tab\t"}', '{"a": "x", "b": 1e999}', '{"a": "x", "b": 01}', '{"a": "x"'),
    ],
)
def test_what_arrow_would_take_or_crash_at_is_named_by_its_line(line: str, tmp_path: Path) -> None:
    path = written(
        tmp_path, lines([{"a": f"text {k}", "b": 1.5} for k in range(3000)]) + line + "\n" + lines([{"a": "z"}])
    )
    with pytest.raises(DataError, match=r"train\.jsonl, line 3001: "):
        open_rows(path).table(["a", "b"])


@pytest.mark.parametrize(
    "name", ["rows.parquet", "rows.csv", "rows.jsonl", "rows.json", "rows.txt", "rows.arrow", "rows.tsv"]
)
def test_rows_are_counted_and_read_from_any_row_on(name: str, tmp_path: Path) -> None:
    texts = [f"{k} und größer" for k in range(20_000)]
    rows = open_rows(write_rows(tmp_path / name, pa.table({"sentence1": texts})))
    assert rows.count() == len(texts)
    for start in (0, 1, 8192, 19_999, 20_000):
        found = pa.concat_tables(rows.batches(["sentence1"], start=start), promote_options="permissive")
        assert found.column(0).to_pylist() == texts[start:]


@pytest.mark.parametrize("odd", ["", "\n", '{"f": NaN}\n', '{"a": "mixed"}\n'])
def test_columns_of_json_lines_stand_in_the_order_in_which_they_occur(odd: str, tmp_path: Path) -> None:
    rows = [{"b": 1}, {"a": 2, "b": 3}, {"c": [1], "a": None}, {"e": {"x": 1}, "d": "null"}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + odd)
    assert open_rows(path).names == ["b", "a", "c", "e", "d", *(["f"] if "f" in odd else [])]


def test_a_header_may_be_long(tmp_path: Path) -> None:
    names = [f"a column {number}" for number in range(20_000)]
    path = tmp_path / "x.csv"
    path.write_text(",".join(names) + "\n" + ",".join(["0"] * len(names)) + "\n")
    assert open_rows(path).names == names
    assert open_rows(path).table(names[-1:]).to_pydict() == {names[-1]: ["0"]}


def test_quotes_are_counted_over_all_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + '"x",1\n' * 300_000 + '"y,2\n')
    with pytest.raises(DataError, match=naming("x.csv", "line 300002")):
        open_rows(path).table()
