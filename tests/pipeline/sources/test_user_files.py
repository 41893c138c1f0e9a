"""Files and gold as users have them: every format, compressed or not, in every layout, or refused by its line."""

import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.sources import load_source
from pipeline.sources.delimited_rows import QuoteWatch, quote_faults
from pipeline.sources.row_files import BINARY, FORMATS, open_rows
from pipeline.sources.source import load_word_source, swallowed_rows
from pipeline.tasks.task import Task
from tests.helpers.messages import naming
from tests.helpers.own_tasks import task_of
from tests.helpers.row_formats import PACKERS, WRITERS, lines, parquet

TEXTS = ["a fine film", 'with "quotes", and\na line', "größer"]
ROWS = [{"text": text, "label": k % 2, "more": k} for k, text in enumerate(TEXTS)]
TEXT_KINDS = [kind for kind in FORMATS if kind not in (*BINARY, ".txt")]  # a folder of splits has no .txt
TABLE = pa.Table.from_pylist(ROWS)


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def texts(folder: Path, split: str = "train", task: Task | None = None) -> list[str]:
    found: list[str] = load_source(task or task_of(), folder).splits[split].column("sentence1").to_pylist()
    return found


def problem(folder: Path, task: Task | None = None) -> str:
    with pytest.raises(DataError) as error:
        load_source(task or task_of(), folder)
    return str(error.value)


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind not in (".tsv", ".txt")])
def test_every_format_is_read_compressed_and_in_any_case(kind: str, packing: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"train{kind.upper()}{packing}", PACKERS[packing](WRITERS[kind](TABLE)))
    if packing and kind in (".parquet", ".arrow", ".feather"):
        assert "Unpack" in problem(tmp_path)
    else:
        assert open_rows(path).table(["text"]).column("text").to_pylist() == TEXTS
        assert texts(tmp_path) == TEXTS


def test_the_formats_are_all_tried() -> None:
    assert WRITERS.keys() == FORMATS.keys()


def test_columns_that_a_manifest_keeps_are_beside_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", WRITERS[".csv"](TABLE))
    kept = load_source(task_of(columns={"sentence1": "text", "label": "label", "keep": "more"}), tmp_path).kept
    assert kept["train"].to_pydict() == {"more": ["0", "1", "2"]}
    missing = task_of(columns={"sentence1": "text", "label": "label", "keep": ["more", "mroe"]})
    assert "'mroe'" in problem(tmp_path, missing)


def test_columns_that_nobody_names_are_not_looked_at(tmp_path: Path) -> None:
    odd = [{"text": "a", "label": 0, "meta": 1}, {"text": "b", "label": 1, "meta": "x"}, {"text": "c", "label": 1}]
    for name, data in {"train.jsonl": lines(odd), "train.json": json.dumps(odd).encode()}.items():
        write(tmp_path / name, data)
        assert texts(tmp_path) == ["a", "b", "c"]
        (tmp_path / name).unlink()
    odd[1]["label"] = "x"
    write(tmp_path / "train.jsonl", lines(odd))
    assert "line 2" in problem(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("train.csv", b"text;label\na;0\nb;1\n", ("line 1", "';'")),
        ("train.csv", b'text;label\n"a;b";0\nc;1\n', ("line 1", "';'")),
        ("train.jsonl", b'["text", "label"]\n["a", 1]\n', ("line 1", "object")),
        ("train.csv", b"text\tlabel\na\t0\n", ("line 1", "tabs", ".tsv")),
        ("train.tsv", b"text,label\na,0\nb,1\n", ("line 1", "commas", ".csv")),
        ("train.csv", b"\n\n", ("empty",)),
        ("train.csv", b"text|label\na|0\n", ("line 1", "'|'")),
        ("train.csv", b'text,label\na,0\n"b, cut', ("quotes", "line 3")),
        ("train.csv", 'text,label\na,0\n"é\n\n'.encode(), ("quotes", "line 3")),
        ("train.csv", "text,label\na,0\n".encode("utf-16"), ("UTF-16",)),
        ("train.jsonl", '{"text": "a", "label": 0}'.encode("utf-16-le"), ("UTF-16",)),
        ("train.csv", b"text,label\na,0\nb\xff,1\n", ("line 3", "0xff")),
        ("train.csv", "text,catégorie\na,0\n".encode("latin-1"), ("line 1", "0xe9", "'é'", "Windows-1252")),
        *((f"train{kind}", b"\x89PNG\r\n\x1a\n\0\0", ("binary",)) for kind in TEXT_KINDS),
        ("train.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0", ("Excel", "CSV")),
        ("train.jsonl", b'{"text": "a", "label": 0},\n{"text": "b", "label": 1}\n', ("line 1", "comma")),
        ("train.json", b'{\n "text": "a",\n "label": 0\n}\n', ("line 1", "[ ]")),
        ("train.json", b'[{"text": "a", "label": 0},\n', ("array",)),
        ("train.json", b'[{"text": "a", "label": 0}, 3]', ("element 2",)),
        ("train.jsonl", b'{"text": "a", "label": 0}\n{"text": "b', ("line 2",)),
        ("train.csv.gz", gzip.compress(b"text,label\na,0\n" * 99, mtime=0)[:-20], ("truncated",)),
        ("train.csv.xz", lzma.compress(b"text,label\na,0\n" * 99)[:-20], ("truncated",)),
        ("train.csv", gzip.compress(b"text,label\na,0\n", mtime=0), ("gzip", ".gz")),
        ("train.csv", parquet(TABLE), ("Parquet", ".parquet")),
        ("train.csv", b"PK\x03\x04whatever", ("zip",)),
        ("train.parquet", parquet(TABLE)[:-9], ("train.parquet",)),
        *(
            (f"train{kind}", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", ("git lfs pull",))
            for kind in FORMATS
            if kind != ".txt"
        ),
    ],
)
def test_a_file_that_is_something_else_is_named_with_its_line(
    name: str, data: bytes, named: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / name, data)
    with pytest.raises(DataError, match=naming(name, *named)):
        load_source(task_of(), tmp_path)


def test_a_spreadsheet_is_named_also_by_an_unknown_ending(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.xlsx", b"PK\x03\x04whatever")
    with pytest.raises(DataError, match=naming("rows.xlsx", "'.xlsx'", "CSV")):
        open_rows(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\n1,"x\ny\n', 2),
        ('a,b\n1,"x"\n', None),
        ('a\n"x ""y"" z\nq\n', 2),
        ('a\n5" pipe\n', None),
        ('a,b\n"q ""x""",5" pipe\n', None),
        ('a\n"x"\n"y\n', 3),
        ('a\n"""\n', 2),
        ('a\n"x""', 2),
    ],
)
def test_the_quote_that_is_not_closed(text: str, line: int | None, tmp_path: Path) -> None:
    assert quote_faults(write(tmp_path / "x.csv", text.encode())).unclosed == line


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ('"one ""two"",0\n"x",1\n', ["line 3", "begins in line 2", "x"]),
        ('"a \\"b\\" c",0\n', ["line 2", "backslash", "b"]),
        ('"a "b" c",0\n', ["line 2", "b"]),
        ('a,0\n"b" c,1\n', ["line 3", "c"]),
        ('"a"b,0\n"c"d,0\n', ["line 2", "b"]),
    ],
)
def test_text_behind_a_closing_quote_is_reported(
    rows: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.csv", f"text,label\n{rows}".encode())
    for _ in range(2):  # once for each file
        open_rows(path).table()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "x.csv" in line]
    assert len(warnings) == 1
    assert all(part in warnings[0] for part in named)


@pytest.mark.parametrize("rows", ['5" pipe,0\n', '"a" ,0\n', '"a ""b""",0\n', '"""",0\n', '"a\\",0\n', '"",0'])
def test_quotes_that_change_no_text_are_not_reported(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_rows(write(tmp_path / "x.csv", f"text,label\n{rows}".encode())).table()
    assert capsys.readouterr().err == ""


@given(text=st.text(st.sampled_from('",\n\r a'), max_size=20), size=st.integers(1, 5))
def test_files_with_wrong_quotes_are_looked_at_closely(text: str, size: int, tmp_path_factory: Any) -> None:
    path = write(tmp_path_factory.getbasetemp() / "quotes.csv", text.encode())
    with path.open("rb") as stream:
        watch = QuoteWatch(stream)
        while watch.read(size):
            pass
    is_right = not (watch.is_inside or watch.is_odd)
    assert not is_right or quote_faults(path) == (None, None)
    watch = QuoteWatch(io.BytesIO(f'"{text.replace(chr(34), chr(34) * 2)}",1\n'.encode()))
    while watch.read(size):
        pass
    assert (watch.is_inside, watch.is_odd) == (False, False)


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ("a,0,", "ends with a comma"),
        ('"he said \\"a, b\\" and",0', "backslash"),
        ("a", "missing"),
        ("a, b,0", "comma needs quotes"),
    ],
)
def test_the_advice_for_a_row_of_another_length_fits(row: str, advice: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", f"text,label\n{row}\nb,1\n".encode())
    assert advice in problem(tmp_path)


def parts(folder: str, name: str, kind: str = ".csv") -> dict[str, bytes]:
    return {f"{folder}{name.format(k)}{kind}": f"text,label\n{k},0\n".encode() for k in range(2)}


@pytest.mark.parametrize(
    "files",
    [
        parts("", "train-{:05}-of-00002"),
        parts("data/", "train-{:05}-of-00002"),
        parts("train/", "{:04}"),
        parts("data/train/", "part-{}"),
        parts("mine/", "train-{:05}-of-00002"),
        parts("plain_text/train/", "{:04}"),
    ],
)
def test_layouts_of_the_hub_are_read_in_order(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in files.items():
        write(tmp_path / name, data)
    assert texts(tmp_path) == ["0", "1"]


@pytest.mark.parametrize("name", ["dev", "valid", "val", "validation", "validation_partial"])
def test_names_of_validation_splits(name: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", b"text,label\na,0\nb,1\n")
    write(tmp_path / f"{name}.csv", b"text,label\nb,1\n")
    assert texts(tmp_path, "validation") == ["b"]


@pytest.mark.parametrize("folder", ["", "data/", "mine/"])
def test_splits_with_names_of_their_own_are_found_in_parts(folder: str, tmp_path: Path) -> None:
    names = ("train", "validation_matched", "validation_mismatched")
    for name in names:
        for number in range(2):
            content = f"text,label\n{name} {number},0\n".encode()
            write(tmp_path / f"{folder}{name}-{number:05}-of-00002.csv", content)
    source = load_source(task_of(splits=dict.fromkeys(names)), tmp_path)
    for name in names:
        assert source.splits[name].column("sentence1").to_pylist() == [f"{name} 0", f"{name} 1"]


def test_parts_that_are_missing_and_files_that_are_passed_over(tmp_path: Path) -> None:
    first, second = parts("", "train-{:05}-of-00003").items()
    write(tmp_path / first[0], first[1])
    assert "part 00001 of 00003" in problem(tmp_path)
    (tmp_path / first[0]).unlink()
    write(tmp_path / "trainings.csv", second[1])
    assert "trainings.csv" in problem(tmp_path)
    write(tmp_path / "train.csv", second[1])
    assert any("trainings.csv" in warning for warning in load_source(task_of(), tmp_path).warnings)
    write(tmp_path / "train" / "0.csv", second[1])
    assert "train.csv" in problem(tmp_path)


def gold(folder: Path, values: list[Any] | pa.Array, task: Task | None = None) -> list[Any]:
    kept = task or task_of()
    table = pa.table({"text": [str(k) for k in range(len(values))], "label": values})
    pq.write_table(table, folder / "train.parquet")
    column = "score" if kept.type == "regression" else "label"
    found: list[Any] = load_source(kept, folder).splits["train"].column(column).to_pylist()
    return found


THREE = ["negative", "neutral", "positive"]
NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "labels", "read"),
    [
        ([0, 1, -1], ["bad", "good"], [0, 1, None]),
        ([0.0, NAN, 1.0], ["bad", "good"], [0, None, 1]),
        (["0.0", "", "1.0"], ["bad", "good"], [0, None, 1]),
        (["bad", "-1", "bad"], ["bad", "good"], [0, None, 0]),
        ([-1, -1], ["bad", "good"], [None, None]),
        ([True, False, None], ["False", "True"], [1, 0, None]),
        ([True, False], ["true", "false"], [0, 1]),
        ([-1, 1, 0], ["-1", "0", "1"], [0, 2, 1]),
        (pa.array(["good", "bad"]).dictionary_encode(), ["bad", "good"], [1, 0]),
        (pa.array([1, 0], pa.decimal128(3, 0)), ["bad", "good"], [1, 0]),
        (pa.array([1, 0], pa.uint8()), ["bad", "good"], [1, 0]),
        (pa.array(["good", "bad"], pa.string_view()), ["bad", "good"], [1, 0]),
        (pa.array([b"good", b"bad"], pa.large_binary()), ["bad", "good"], [1, 0]),
        ([" Good", "BAD ", "bad"], ["bad", "good"], [1, 0, 0]),
        (["a", "A", "b"], ["a", "A", "b"], [0, 1, 2]),
        (["NaN", "None", "null", "N/A", "<NA>", " 1 "], ["bad", "good"], [None, None, None, None, None, 1]),
        (["None", "nan"], ["none", "any"], [0, None]),
    ],
)
def test_what_gold_of_classes_may_be(values: Any, labels: list[str], read: list[Any], tmp_path: Path) -> None:
    assert gold(tmp_path, values, task_of(labels=labels)) == read


@pytest.mark.parametrize(
    ("values", "labels", "row"),
    [
        ([0, -1, 1, 0], THREE, "row 1"),
        ([1, -1, 1], ["bad", "good"], "row 1"),
        ([0.5, 1.0], ["bad", "good"], "row 0"),
        (["0.5"], ["bad", "good"], "row 0"),
        ([True, False], ["bad", "good"], "row 0"),
        ([2, 0], ["bad", "good"], "row 0"),
        (["B"], ["a", "A"], "row 0"),
        (pa.array([b"\xff"]), ["bad", "good"], "row 0"),
    ],
)
def test_what_gold_of_classes_may_not_be(values: Any, labels: list[str], row: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("train.parquet", row)):
        gold(tmp_path, values, task_of(labels=labels))


def test_what_gold_of_scores_may_be(tmp_path: Path) -> None:
    scores = task_of(type="regression", labels=[], metrics=["pearson"], score_range=[0, 5])
    assert gold(tmp_path, [1.5, NAN, None, 5.0], scores) == [1.5, None, None, 5.0]
    assert gold(tmp_path, [" 1.5", "nan", "", "2e0"], scores) == [1.5, None, None, 2.0]
    assert gold(tmp_path, pa.array([1, 5], pa.int8()), scores) == [1, 5]
    for values in ([True], ["1.5x"], ["1,5"], [float("inf")], [6]):
        with pytest.raises(DataError, match=naming("train.parquet")):
            gold(tmp_path, values, scores)


def test_odd_gold_is_reported_with_counts(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", b"text,label\na,0\na,1\na,0\nb,1\n")
    warnings = " ".join(load_source(task_of(labels=["bad", "good", "never"]), tmp_path).warnings)
    assert "one text" in warnings
    assert "3 rows" in warnings
    assert "never" in warnings


def test_quotes_that_swallow_rows_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", b'text,label\na,0\n"b,1\nc,0\nd"",1\ne,1\nf"g",0\n')
    assert any("row 1" in warning and "quote" in warning for warning in load_source(task_of(), tmp_path).warnings)


FASTTEXT = b"__label__good a fine film\n__label__bad\tdull  stuff \r\n\nno label here\nlate label __label__good\n"


@pytest.mark.parametrize("name", ["train.txt", "train.TXT", "train.txt.gz", "data/train/0.txt"])
def test_the_labels_of_fasttext_are_gold_and_no_text(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, gzip.compress(FASTTEXT) if name.endswith("gz") else FASTTEXT)
    rows = load_source(task_of(), tmp_path).splits["train"]
    assert rows.column("sentence1").to_pylist() == ["a fine film", "dull  stuff", "", "no label here", "late label"]
    assert rows.column("label").to_pylist() == [1, 0, None, None, 1]


def test_several_labels_of_fasttext(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.txt", b"__label__a __label__c x y\n__label__b z\nw\n")
    several = task_of(type="multilabel", labels=["a", "b", "c"], metrics=["micro_f1"])
    assert load_source(several, path).splits["train"].column("label").to_pylist() == [[0, 2], [1], None]
    with pytest.raises(DataError, match=naming("mine.txt", "row 0", "multilabel")):
        load_source(task_of(labels=["a", "b", "c"]), path)
    with pytest.raises(DataError, match=naming("mine.txt", "'c' in row 0")):
        load_source(task_of(type="multilabel", labels=["a", "b"], metrics=["micro_f1"]), path)


def test_a_text_without_labels_is_no_split_and_fasttexts_own_endings_are_named(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", b"a\nb\n")
    assert "contains no rows" in problem(tmp_path)
    write(tmp_path / "train.csv", b"text,label\na,0\nb,1\n")
    assert texts(tmp_path) == ["a", "b"]
    with pytest.raises(DataError, match=naming("cooking.train", "fastText", ".txt")):
        open_rows(write(tmp_path / "cooking.train", FASTTEXT))
    assert open_rows(write(tmp_path / "x.txt", FASTTEXT)).table(["sentence1"]).column(0)[0].as_py() == "a fine film"


def test_a_list_of_one_label_is_that_label(tmp_path: Path) -> None:
    assert gold(tmp_path, [["good"], [], None, ["bad"]]) == [1, None, None, 0]
    assert gold(tmp_path, [[1], [0]]) == [1, 0]
    assert gold(tmp_path, [[1, 0], [0, 1], None]) == [0, 1, None]
    with pytest.raises(DataError, match=naming("train.parquet", "rows 0, 1")):
        gold(tmp_path, [[1, 0], [1, 1]])


def test_a_column_that_is_there_twice_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", b"text,label,x,x\na,0,1,2\nb,1,1,2\n")
    assert texts(tmp_path) == ["a", "b"]
    write(tmp_path / "train.csv", b"text,label,text\na,0,1\n")
    assert "'text' is repeated" in problem(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", ["text,label", '"text","label"', "\ufefftext,label", '"te,xt",text,label'])
def test_headers_and_ends_of_lines(header: str, end: str, tmp_path: Path) -> None:
    row = "1,0" if "te," not in header else "9,1,0"
    write(tmp_path / "train.csv", (header + end + row + end + row.replace("1,0", "2,1")).encode())
    assert texts(tmp_path) == ["1", "2"]


ONE_LABEL = {"type": "classification", "labels": ["bad", "good"], "metrics": ["accuracy"]}
LABELS = {"type": "multilabel", "labels": ["a", "b"], "metrics": ["micro_f1"]}
SCORES = {"type": "regression", "labels": [], "metrics": ["pearson"], "score_range": [0, 5]}
WORDS = {"type": "token_labels", "labels": ["O", "B-X"], "metrics": ["span_f1"]}
PAIRS = ONE_LABEL | {"columns": {"sentence1": "text", "sentence2": "other", "label": "label"}}


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (ONE_LABEL, [("x", 0), ("x", 1), ("y", 1), ("x", None), ("y", None)]),
        (LABELS, [("x", ["a"]), ("x", ["a", "b"]), ("y", ["b"]), ("y", ["b"])]),
        (SCORES, [("x", 1.0), ("x", 1.5), ("y", 2.0), ("y", 2.0)]),
        (WORDS, [(["x", "z"], ["O", "O"]), (["x", "z"], ["O", "B-X"]), (["x z"], ["O"])]),
        (PAIRS, [("x", 0, "p"), ("x", 1, "p"), ("x", 1, "q"), ("y", 1, "p")]),
    ],
)
def test_texts_whose_gold_contradicts_itself_are_counted(
    task: dict[str, Any], rows: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    names = ("text", "label", "other")[: len(rows[0])]
    write(tmp_path / "train.jsonl", lines([dict(zip(names, row, strict=True)) for row in rows]))
    read = load_word_source if task["type"] == "token_labels" else load_source
    warnings = [text for text in read(task_of(**task), tmp_path).warnings if "several" in text]
    assert len(warnings) == 1
    assert "one text has several" in warnings[0]
    assert "in 2 rows, first in row 0" in warnings[0]


@pytest.mark.parametrize(
    ("task", "content"),
    [
        (PAIRS, 'text,other,label\na,x,0\nb,"x,1\nc,y,0\nd,y",1\n'),
        (PAIRS, 'text,other,label\na,x,0\n"b,x,1\nc,y,0\nd,y,1\ne",z,1\n'),
        (LABELS, 'text,label\nx,a\n"y,b\nz,a\nw",b\n'),
        (WORDS, 'text,label\nx y,O B-X\n"y,O\nz y,O B-X\nw",O\n'),
    ],
)
def test_quotes_that_swallow_rows_are_reported_for_every_task(
    task: dict[str, Any], content: str, tmp_path: Path
) -> None:
    write(tmp_path / "train.csv", content.encode())
    table = open_rows(tmp_path / "train.csv").table()
    assert any("row 1" in warning for warning in swallowed_rows(task_of(**task), "train.csv", table))


def test_lists_that_csv_has_as_text(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", b'text,label\nx,"[\'a\', \'b\']"\ny,"[""b""]"\nz,[]\nw,"[1, 0]"\n')
    assert load_source(task_of(**LABELS), tmp_path).splits["train"].column("label").to_pylist()[:3] == [[0, 1], [1], []]
    write(tmp_path / "train.csv", b"text,label\n\"['x', 'y']\",\"['O', 'B-X']\"\n\"['z']\",[0]\n")
    assert "row 0" in word_problem(tmp_path)  # names and numbers are no lists of one kind
    write(tmp_path / "train.csv", b"text,label\n\"['x', 'y']\",\"[0, 1]\"\n\"['z']\",[0]\n")
    rows = load_word_source(task_of(**WORDS), tmp_path).splits["train"]
    assert rows.column("sentence1").to_pylist() == [["x", "y"], ["z"]]
    assert rows.column("label").to_pylist() == [[0, 1], [0]]


def word_problem(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        load_word_source(task_of(**WORDS), folder)
    return str(error.value)


def test_bytes_are_text_if_they_are_utf8(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", parquet(pa.table({"text": ["größer".encode(), b"b"], "label": [0, 1]})))
    assert texts(tmp_path) == ["größer", "b"]
    write(tmp_path / "train.parquet", parquet(pa.table({"text": [b"\xff", b"b"], "label": [0, 1]})))
    assert "'text' contains binary" in problem(tmp_path)


def test_a_header_without_rows_and_rows_of_other_lengths(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n"):
        write(tmp_path / "train.csv", f"text,label{end}".encode())
        assert "no rows" in problem(tmp_path)
    write(tmp_path / "train.csv", b"text,label\na,0\nb, c,1\n")
    assert all(part in problem(tmp_path) for part in ("train.csv", "#3", "quotes"))
