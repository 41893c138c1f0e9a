import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.sources import load_source, rows_sha256, sentences
from pipeline.tasks.task import Task, load_task
from tests.helpers import own_tasks
from tests.helpers.messages import naming

HARD_TEXTS = ['a "quoted" word', "two\nlines, one row", "ÅÄÖ 日本語 👍", "NA", "null", "3.50", "tab\there"]
BLANKS = ["", "  ", "\n", "\u00a0", "\u200b\ufeff", "\u3000"]
PAIR = {"sentence1": "a", "sentence2": "b", "label": "label"}


def task_of(**changes: Any) -> Task:
    return own_tasks.task_of(**{"labels": ["no", "yes"], "splits": {"train": None}} | changes)


def regression() -> Task:
    return task_of(type="regression", labels=[], metrics=["pearson"], score_range=[0, 5])


def read(folder: Path, name: str, content: str | bytes, task: Task | None = None) -> pa.Table:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return load_source(task or task_of(), folder).splits["train"]


def test_parquet_keeps_text_and_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": HARD_TEXTS, "label": [k % 2 for k in range(7)]}), tmp_path / "train.parquet")
    rows = load_source(task_of(), tmp_path).splits["train"]
    assert rows.column("sentence1").to_pylist() == HARD_TEXTS
    assert rows.column("source_row").to_pylist() == list(range(7))
    assert rows.column("label").to_pylist() == [0, 1, 0, 1, 0, 1, 0]
    assert rows.column("sentence2").null_count == rows.column("score").null_count == 7


def test_csv_with_quotes_and_newlines(tmp_path: Path) -> None:
    quoted = ['"' + text.replace('"', '""') + '"' for text in HARD_TEXTS]
    rows = read(tmp_path, "train.csv", "label,text\n" + "".join(f"yes,{text}\n" for text in quoted))
    assert rows.column("sentence1").to_pylist() == HARD_TEXTS
    assert rows.column("label").to_pylist() == [1] * 7


def test_jsonl(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"label": k % 2, "text": text}) + "\n" for k, text in enumerate(HARD_TEXTS))
    assert read(tmp_path, "train.jsonl", lines).column("sentence1").to_pylist() == HARD_TEXTS


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_unquoted_tsv_with_stray_quotes(tmp_path: Path, bom: str, end: str) -> None:
    lines = ["text\tlabel", '"half a quote\t0', 'an inch is 1"\t1', "NA\t1", "007\t0"]
    rows = read(tmp_path, "train.tsv", bom + end.join(lines) + end)
    assert rows.column("sentence1").to_pylist() == ['"half a quote', 'an inch is 1"', "NA", "007"]
    assert rows.column("label").to_pylist() == [0, 1, 1, 0]


def test_text_of_digits_stays_text_after_a_byte_order_mark(tmp_path: Path) -> None:
    rows = read(tmp_path, "train.csv", "\ufefftext,label\n007,0\n1.50,1\n")
    assert rows.column("sentence1").to_pylist() == ["007", "1.50"]


def test_csv_of_many_blocks_with_newlines(tmp_path: Path) -> None:
    text = "line\n" * 50
    rows = read(tmp_path, "train.csv", "text,label\n" + f'"{text}",0\n' * 10_000)
    assert rows.column("sentence1").unique().to_pylist() == [text]
    assert rows.num_rows == 10_000


@pytest.mark.parametrize("folder", ["CoLA", "cola", "."])
def test_cola_tsv_without_header(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    text = 'gj04\t1\t\tThe sailors rode the breeze.\ngj04\t0\t*\tThe "car honked.\n'
    (tmp_path / folder / "dev.tsv").write_text(text)
    rows = load_source(load_task("cola"), tmp_path, ("validation",)).splits["validation"]
    assert rows.column("sentence1").to_pylist() == ["The sailors rode the breeze.", 'The "car honked.']
    assert rows.column("label").to_pylist() == [1, 0]


def test_mnli_tsv_with_text_labels(tmp_path: Path) -> None:
    header = "index\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label"
    lines = ["0\tx\tp0\th0\tneutral\tcontradiction", "1\tx\tp1\th1\tneutral\tentailment", "2\tx\tp2\th2\tneutral\t-"]
    (tmp_path / "MNLI").mkdir()
    (tmp_path / "MNLI" / "dev_matched.tsv").write_text("\n".join([header, *lines]) + "\n")
    source = load_source(load_task("mnli"), tmp_path, ("validation_matched",))
    rows = source.splits["validation_matched"]
    assert sentences(rows) == (["p0", "p1", "p2"], ["h0", "h1", "h2"])
    assert rows.column("label").to_pylist() == [2, 0, None]
    assert "1 of 3 rows" in source.warnings[0]


def test_scores_from_text(tmp_path: Path) -> None:
    rows = read(tmp_path, "train.tsv", "text\tlabel\na\t5.000\nb\t0.25\n", regression())
    assert rows.column("score").to_pylist() == [5.0, 0.25]
    assert rows.column("label").null_count == 2


@pytest.mark.parametrize("value", ["1", "1.0", "true"])
def test_numbers_are_classes_but_booleans_are_not(tmp_path: Path, value: str) -> None:
    line = f'{{"text": "x", "label": {value}}}\n'
    if value == "true":
        with pytest.raises(DataError, match="label True in row 0"):
            read(tmp_path, "train.jsonl", line)
    else:
        assert read(tmp_path, "train.jsonl", line).column("label").to_pylist() == [1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.float32(), pa.float64(), pa.string()])
def test_labels_of_every_type_are_put_in_their_rows(tmp_path: Path, kind: pa.DataType) -> None:
    labels = pa.array([1, 0, None, 1, -1, 0]).cast(kind)
    for column in (labels, labels.dictionary_encode()):
        pq.write_table(pa.table({"text": ["x"] * 6, "label": column}), tmp_path / "train.parquet")
        rows = load_source(task_of(), tmp_path).splits["train"]
        assert rows.column("label").to_pylist() == [1, 0, None, 1, None, 0]


def test_label_names_that_are_numerals_are_names(tmp_path: Path) -> None:
    rows = read(tmp_path, "train.csv", "text,label\na,1\nb,2\nc,3\n", task_of(labels=["1", "2", "3"]))
    assert rows.column("label").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("values", [[-1, 0, 1], [1.0, 0.0], [1.5, 2.0], ["\u00b2", "7"]])
def test_names_that_are_numerals_may_be_numbers(tmp_path: Path, values: list[Any]) -> None:
    pq.write_table(pa.table({"text": ["x"] * len(values), "label": values}), tmp_path / "train.parquet")
    rows = load_source(task_of(labels=list(map(str, values))), tmp_path).splits["train"]
    assert rows.column("label").to_pylist() == list(range(len(values)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", "txt,label\na,0\n", naming("train.csv: ", "'text'", "'txt'", "label, txt")),
        ("train.csv", "text,label\na,0\nb,7\nc,7\n", naming("label '7' in rows 1, 2", "0=no, 1=yes")),
        ("train.csv", "text,label\na,maybe\n", "label 'maybe' in row 0"),
        ("train.jsonl", '{"text": "a", "label": 7.0}\n', "label 7 in row 0"),
        ("train.jsonl", '{"text": "a", "label": 0.5}\n', r"label 0\.5 in row 0"),
        ("train.jsonl", '{"text": "a", "label": 1e300}\n', r"label 1e\+300 in row 0"),
        ("train.jsonl", '{"text": "a", "label": 0}\n{"text": null, "label": 0}\n', naming("'text'", "row 1")),
        ("train.jsonl", '{"text": 3, "label": 0}\n', naming("'text'", "int64")),
        ("train.jsonl", '{"text": "a"', r"train\.jsonl, line 1: "),
        ("train.csv", "text,label\n", "'train'"),
        ("train.csv", "", r"train\.csv: "),
        ("train.csv", "text,label\na,0,1\n", r"train.csv: .*Expected 2 columns, got 3"),
        ("train.tsv", b"text\tlabel\nok\t0\ncaf\xe9\t0\n", r"train\.tsv: line 3: byte 0xe9"),
        ("train.csv", b"text,label\n" + b"ok,0\n" * 9000 + b"caf\xe9,0\n", r"line 9002: byte 0xe9"),
        ("train.jsonl", b'{"text": "caf\xe9", "label": 0}\n', r"train\.jsonl: line 1: byte 0xe9"),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, name, content)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (pa.array([0, 7]).cast(pa.float32()).cast(pa.float16()), "label 7 in row 1"),
        (pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), r"label .*date32"),
        (pa.array([0, 7], pa.timestamp("us", "No/Where")), r"label .*timestamp"),
    ],
)
def test_labels_of_odd_types_are_refused(tmp_path: Path, labels: pa.Array, message: str) -> None:
    pq.write_table(pa.table({"text": ["x"] * 2, "label": labels}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        load_source(task_of(), tmp_path)


@pytest.mark.parametrize("name", ["train.csv", "train.parquet"])
def test_scores_at_both_ends_of_a_range_that_float32_has_not(tmp_path: Path, name: str) -> None:
    scores, texts = [-3.676268, 1.711390], ["a", "b"]
    (tmp_path / name).write_text("text,label\na,-3.676268\nb,1.711390\n")
    if name == "train.parquet":
        pq.write_table(pa.table({"text": texts, "label": scores}), tmp_path / name)
    task = task_of(type="regression", labels=[], metrics=["pearson"], score_range=scores)
    rows = load_source(task, tmp_path).splits["train"]
    assert rows.column("score").to_pylist() == pytest.approx(scores)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5.5", naming("[5.5]", "[0, 5]", "row 1")),
        ("high", naming("'high'", "row 1")),
        ("1,5", naming("score", "row 1")),
    ],
)
def test_wrong_scores_are_refused(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, "train.csv", f'text,label\na,1\nb,"{value}"\n', regression())


def test_all_problems_of_all_splits_are_listed(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,9\n")
    (tmp_path / "test.csv").write_text("words,label\na,0\n")
    with pytest.raises(DataError, match=naming("2 problems", "train.csv: label '9'", "test.csv: ", "'text'")):
        load_source(task_of(splits={"train": None, "test": None}), tmp_path)


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"] * 1000, "label": [0] * 1000}), tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    with pytest.raises(DataError, match=r"train\.parquet: "):
        read(tmp_path, "train.parquet", data[:-10])


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())])
@pytest.mark.parametrize(("type_", "labels"), [("classification", [1, 0]), ("multilabel", [[1], [0]])])
def test_text_of_every_type_is_text(tmp_path: Path, kind: pa.DataType, type_: str, labels: list[Any]) -> None:
    columns = {"text": pa.array(["a", "b"]), "label": pa.array(["yes", "no"])}
    table = pa.table(columns).cast(pa.schema([("text", kind), ("label", kind)]))
    pq.write_table(table, tmp_path / "train.parquet")
    metrics = {"multilabel": ["micro_f1"]}.get(type_, ["accuracy"])
    rows = load_source(task_of(type=type_, metrics=metrics), tmp_path).splits["train"]
    assert rows.select(["sentence1", "label"]).to_pydict() == {"sentence1": ["a", "b"], "label": labels}


def test_label_column_with_categories(tmp_path: Path) -> None:
    labels = pa.array(["yes", "no"]).dictionary_encode()
    pq.write_table(pa.table({"text": ["a", "b"], "label": labels}), tmp_path / "train.parquet")
    assert load_source(task_of(), tmp_path).splits["train"].column("label").to_pylist() == [1, 0]


@pytest.mark.parametrize("text", BLANKS)
def test_empty_text_is_only_warned_of(tmp_path: Path, text: str) -> None:
    rows = [{"text": "a", "label": 0}, {"text": text, "label": 1}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = load_source(task_of(), tmp_path)
    assert source.splits["train"].num_rows == 2
    assert [w for w in source.warnings if "'text' is empty in row 1" in w]


@pytest.mark.parametrize(
    ("first", "second"),
    [("good", "Good"), ("caf\u00e9", "cafe\u0301"), ("fit", "\ufb01t"), ("a", " a"), ("etc", "etc.")],
)
def test_labels_that_look_alike_are_warned_of(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    warnings = load_source(task_of(labels=[first, second]), tmp_path).warnings
    assert [w for w in warnings if f"{first!a} and {second!a}" in w]
    assert not load_source(task_of(), tmp_path).warnings


@pytest.mark.parametrize("values", ["[-1, 2.5]", '["-1", "2.5"]', '["-1.0", "2.5"]', '["-", "2.5"]'])
def test_minus_one_is_no_score_where_the_range_excludes_it(tmp_path: Path, values: str) -> None:
    lines = "".join(json.dumps({"text": "a", "label": value}) + "\n" for value in json.loads(values))
    assert read(tmp_path, "train.jsonl", lines, regression()).column("score").to_pylist() == [None, 2.5]


def test_minus_one_is_a_score_within_the_range(tmp_path: Path) -> None:
    task = task_of(type="regression", labels=[], metrics=["pearson"], score_range=[-1, 5])
    assert read(tmp_path, "train.csv", "text,label\na,-1\nb,2.5\n", task).column("score").to_pylist() == [-1, 2.5]


def test_replacement_character_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\ncaf\ufffd,0\n", encoding="utf-8")
    assert "U+FFFD" in load_source(task_of(), tmp_path).warnings[0]


def test_partial_split_lands_in_the_warnings(tmp_path: Path) -> None:
    (tmp_path / "train_partial.csv").write_text("text,label\na,0\nb,1\n")
    source = load_source(task_of(splits={"train": 5000}), tmp_path)
    assert source.splits["train"].num_rows == 2
    assert [w for w in source.warnings if "2 rows" in w]


def test_missing_split_lands_in_the_warnings(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,0\n")
    source = load_source(task_of(splits={"train": None, "validation": None}), tmp_path)
    assert list(source.splits) == ["train"]
    assert "split 'validation' of task 'mine'" in source.warnings[0]
    assert "validation (.parquet, .jsonl, .csv, .tsv, " in source.warnings[0]


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    for name in ("train.csv", "train_partial.csv"):
        (tmp_path / name).write_text("text,label\na,0\n")
    with pytest.raises(DataError, match=naming("'train'", "train.csv, train_partial.csv")):
        load_source(task_of(), tmp_path)


def test_single_file_is_the_training_split(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\na,0\n")
    assert list(load_source(task_of(), tmp_path / "reviews.csv").splits) == ["train"]


@pytest.mark.parametrize("splits", [{"test": None}, {"train": None, "test": None}])
def test_single_file_never_gives_a_split_that_was_not_asked_for(tmp_path: Path, splits: dict[str, None]) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\na,0\n")
    try:
        source = load_source(task_of(splits=splits), tmp_path / "reviews.csv", ("test",))
    except (ConfigError, DataError):
        return
    assert list(source.splits) == ["test"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("'mine'", "train.parquet, ")):
        load_source(task_of(), tmp_path)
    with pytest.raises(DataError, match=naming("--data", "gone: ")):
        load_source(task_of(), tmp_path / "gone")
    with pytest.raises(DataError, match=naming("'mine'", "--data PATH")):
        load_source(task_of())
    with pytest.raises(ConfigError, match=naming("--splits: ", "'mine'", "'dev'", "train")):
        load_source(task_of(), tmp_path, ("dev",))
    (tmp_path / "train.xlsx").write_text("x")
    with pytest.raises(DataError, match=naming("train.xlsx: ", "'.xlsx'", ".parquet, .jsonl, .csv, .tsv")):
        load_source(task_of(), tmp_path / "train.xlsx")


def test_distill_data_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("text,label\nfrom the environment,0\n")
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path))
    source = load_source(task_of())
    assert source.description == str(tmp_path)
    assert source.splits["train"].column("sentence1").to_pylist() == ["from the environment"]
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=naming("DISTILL_DATA=", "gone: ")):
        load_source(task_of())


def test_rows_hash_depends_on_text_gold_and_order(tmp_path: Path) -> None:
    task = task_of(columns=PAIR)
    contents = ["x,y,0\nz,w,1\n", "z,w,1\nx,y,0\n", "x,y,1\nz,w,1\n", "x,y2,0\nz,w,1\n", "xy,,0\nz,w,1\n"]
    hashes = [rows_sha256(read(tmp_path, "train.csv", "a,b,label\n" + content, task)) for content in contents]
    again = rows_sha256(read(tmp_path, "train.csv", "label,b,a\nno,y,x\nyes,w,z\n", task))
    assert len(set(hashes)) == len(contents)
    assert again == hashes[0]


def test_a_missing_column_is_not_taken_for_one_that_is_another(tmp_path: Path) -> None:
    columns = {"sentence1": "sentence1", "sentence2": "sentence2", "label": "label"}
    with pytest.raises(DataError, match=naming("'sentence2'", "label, sentence1.")):
        read(tmp_path, "train.csv", "sentence1,label\na,0\n", task_of(columns=columns))
    with pytest.raises(DataError, match=naming("'sentence2'", "'sentence_2'")):
        read(tmp_path, "train.csv", "sentence1,sentence_2,label\na,b,0\n", task_of(columns=columns))
