import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record, write_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target, margins
from pipeline.tasks.task import Task
from student.predict.labels import answer_columns
from student.predict.predictor import Predictor
from tests.helpers.commands import invoke

TEXTS = [f"the {thing} was {word} ." for thing in ("food", "wine") for word in ("dull", "lovely", "awful", "perfect")]
MANIFEST = """
name: reviews
type: classification
columns: {sentence1: [review], label: stars}
labels: [bad, good]
metrics: [accuracy]
splits: {train: }
"""


def predict(run: Path, file: Path, *others: object) -> pa.Table:
    """What the command writes for a file."""
    output = file.with_name(f"{file.name}.parquet")
    result = invoke("predict", run, "--file", file, "--output", output, *others)
    assert result.exit_code == 0, result.stderr
    return pq.read_table(output)


def refused(run: Path, file: Path, *others: object) -> str:
    """The message of the command, which writes no file."""
    before = sorted(file.parent.iterdir())
    result = invoke("predict", run, "--file", file, "--output", file.with_name("out.parquet"), *others)
    assert result.exit_code == 2
    assert sorted(file.parent.iterdir()) == before, "something was written"
    return result.stderr.replace("\n", " ")


def write_rows(folder: Path, table: pa.Table) -> list[Path]:
    """A table in every kind of file."""
    pq.write_table(table, folder / "rows.parquet", row_group_size=3)
    pc.write_csv(table, folder / "rows.csv")
    lines = ["\t".join(map(str, row.values())) for row in table.to_pylist()]
    (folder / "rows.tsv").write_text("\n".join(["\t".join(table.column_names), *lines]))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in table.to_pylist()))
    return [folder / f"rows.{kind}" for kind in ("parquet", "csv", "tsv", "jsonl")]


def test_every_kind_of_file_gets_the_answers_of_the_predictor_in_order(opinion_run: Path, tmp_path: Path) -> None:
    expected = Predictor(opinion_run)(TEXTS)
    table = pa.table({"id": list(range(len(TEXTS))), "sentence1": TEXTS, "label": ["x"] * len(TEXTS)})
    for file in write_rows(tmp_path, table):
        answers = predict(opinion_run, file, "--columns", "label", "--columns", "id")
        assert answers.column_names == ["input_label", "id", "label", "probabilities", "margin"]
        assert [int(number) for number in answers["id"].to_pylist()] == list(range(len(TEXTS)))
        assert answers["label"].to_pylist() == [row["label"] for row in expected]
        for answer, row in zip(answers.to_pylist(), expected, strict=True):
            assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-6)
            assert answer["margin"] == pytest.approx(abs(answer["probabilities"]["bad"] * 2 - 1), abs=1e-6)
    (tmp_path / "lines.txt").write_text("\r\n".join(TEXTS))
    assert predict(opinion_run, tmp_path / "lines.txt")["label"].to_pylist() == [row["label"] for row in expected]


def test_many_rows_of_pairs_are_read_in_batches_and_answered_as_one(roles_run: Path, tmp_path: Path) -> None:
    firsts = [f"anna paid {name} {'now ' * (k % 7)}." for k in range(6000) for name in ("ben", "emma", "felix")]
    seconds = [text.replace("anna", "clara") for text in firsts[::-1]]
    pq.write_table(pa.table({"sentence2": seconds, "sentence1": firsts}), tmp_path / "pairs.parquet")
    answers = predict(roles_run, tmp_path / "pairs.parquet")
    logits_NC = Predictor(roles_run).logits(firsts, seconds)
    expected = answer_columns(Predictor(roles_run).student.config.target, logits_NC)
    np.testing.assert_allclose(answers["margin"].to_numpy(), expected["margin"].to_numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
)
def test_texts_of_any_type_of_arrow_are_answered_alike(kind: pa.DataType, opinion_run: Path, tmp_path: Path) -> None:
    texts = pa.array(TEXTS)
    column = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(kind)
    pq.write_table(pa.table({"sentence1": column}), tmp_path / "rows.parquet")
    expected = [answer["label"] for answer in Predictor(opinion_run)(TEXTS)]
    assert predict(opinion_run, tmp_path / "rows.parquet").column("label").to_pylist() == expected
    printed = invoke("predict", opinion_run, "--file", tmp_path / "rows.parquet", "--json").stdout
    assert [answer["label"] for answer in json.loads(printed)] == expected


def test_a_long_type_is_shortened(opinion_run: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence1": [{str(k): "x" for k in range(1000)}]}), tmp_path / "rows.parquet")
    assert len(refused(opinion_run, tmp_path / "rows.parquet")) < 500


def test_no_rows_are_a_file_without_rows(opinion_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,sentence1\n")
    answers = predict(opinion_run, tmp_path / "rows.csv", "--columns", "id")
    assert (answers.num_rows, answers.column_names) == (0, ["id", "label", "probabilities", "margin"])


def test_scores_are_one_column(ratings_run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the food was lovely .\n")
    answers = predict(ratings_run, tmp_path / "lines.txt")
    assert answers.to_pylist() == [
        {"score": pytest.approx(Predictor(ratings_run)(["the food was lovely ."])[0]["score"])}
    ]


def test_texts_are_found_by_the_tasks_names(opinion_run: Path, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(MANIFEST)
    (tmp_path / "rows.csv").write_text("review,stars\nthe food was dull .,3\n")
    assert "'sentence1'" in refused(opinion_run, tmp_path / "rows.csv")
    assert predict(opinion_run, tmp_path / "rows.csv", "--manifest", tmp_path / "task.yaml").num_rows == 1
    (tmp_path / "other.csv").write_text("revue,stars\nx,3\n")
    said = refused(opinion_run, tmp_path / "other.csv", "--manifest", tmp_path / "task.yaml")
    assert "'review' or 'sentence1'. Did you mean 'revue'?" in said


def test_a_run_knows_the_names_that_its_set_was_made_with(
    roles_run: Path, roles_set: ExampleSet, roles: Task, tmp_path: Path
) -> None:
    assert roles_set.record.task is not None
    assert roles_set.record.task.text_columns == roles.columns.texts == (("sentence1",), ("sentence2",))
    run = Path(shutil.copytree(roles_run, tmp_path / "run"))
    record = read_work_record(run / RUN_RECORD)
    assert record["text_columns"] == [["sentence1"], ["sentence2"]]
    write_record(run / RUN_RECORD, record | {"text_columns": [["before", "first"], ["after"]]})
    (tmp_path / "rows.csv").write_text("first,after\nanna paid ben .,ben was paid by anna .\n")
    assert predict(run, tmp_path / "rows.csv").num_rows == 1
    said = refused(roles_run, tmp_path / "rows.csv")
    assert "'sentence1'" in said
    write_record(run / RUN_RECORD, {key: record[key] for key in record if key != "text_columns"})  # as older ones
    assert "'sentence1'" in refused(run, tmp_path / "rows.csv")


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "jsonl", "txt"])
def test_a_file_without_a_byte_is_refused(opinion_run: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / f"rows.{kind}").touch()
    assert f"rows.{kind}: " in refused(opinion_run, tmp_path / f"rows.{kind}")


def test_how_many_answers_were_written_is_told(opinion_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("the food was dull .\n" * 1001)
    command = ("predict", opinion_run, "--file", tmp_path / "rows.txt", "--output", tmp_path / "o.parquet")
    first, again = (invoke(*command) for _ in range(2))
    assert "o.parquet: 1,001 answers" in " ".join(first.stderr.split())
    assert "o.parquet: 1,001 answers" in " ".join(again.stderr.split())


def test_rows_without_text_are_named_before_anything_is_answered(opinion_run: Path, tmp_path: Path) -> None:
    texts = ["fine"] * 20000
    pq.write_table(pa.table({"sentence1": [*texts, None, "x", None]}), tmp_path / "rows.parquet")
    said = refused(opinion_run, tmp_path / "rows.parquet")
    assert "rows.parquet: 'sentence1'" in said
    assert "rows 20001, 20003" in said
    (tmp_path / "rows.csv").write_text("id,sentence1\n" + "1,fine\n" * 20000 + "2,\n3,x\n4, \n")
    assert "rows 20001, 20003" in refused(opinion_run, tmp_path / "rows.csv")
    pq.write_table(pa.table({"sentence1": list(range(20000))}), tmp_path / "numbers.parquet")
    assert refused(opinion_run, tmp_path / "numbers.parquet").count("int64") == 1
    lines = [{"sentence1": "fine"}] * 9000 + [{"sentence1": 5}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "rows.jsonl, line 9001: 'sentence1' is 5" in refused(opinion_run, tmp_path / "rows.jsonl")


def without_nulls(value: Any) -> Any:
    """A value without the keys that only other rows have."""
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return value


def test_types_are_those_of_all_rows(opinion_run: Path, tmp_path: Path) -> None:
    late: list[dict[str, Any]] = [{"n": 0.5, "w": ["a"]}, {"n": None, "w": None}, {"n": float("nan"), "w": []}]
    rows: list[dict[str, Any]] = [{"n": None, "w": []}, *[{"n": k, "w": []} for k in range(9000)], *late]
    lines = [json.dumps({"sentence1": "fine", "nothing": None} | row) + "\r\n" for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    kept = predict(opinion_run, tmp_path / "rows.jsonl", "--columns", "n", "--columns", "w", "--columns", "nothing")
    assert [kept.schema.field(name).type for name in ("n", "w", "nothing")] == [
        pa.float64(),
        pa.list_(pa.string()),
        pa.string(),
    ]
    assert kept["n"].to_pylist()[:-1] == [row["n"] for row in rows[:-1]]
    assert kept["w"].to_pylist() == [row["w"] for row in rows]


@pytest.mark.parametrize(
    "other",
    [{"a": 1, "b": 2}, [{"a": 1, "b": 2}], {"a": 1, "c": {"d": 1, "e": 2}}],
)
def test_no_key_of_what_is_kept_is_lost(other: object, opinion_run: Path, tmp_path: Path) -> None:
    usual: object = {"a": 1, "c": {"d": 1}} if isinstance(other, dict) else [{"a": 1}]
    rows = [{"sentence1": "fine", "kept": usual}] * 8200
    file = tmp_path / "rows.jsonl"
    file.write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in [*rows, {"sentence1": "fine", "kept": other}]))
    *first, last = predict(opinion_run, file, "--columns", "kept")["kept"].to_pylist()
    assert without_nulls(first) == [usual] * 8200
    assert without_nulls(last) == other


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"sentence1": "x"}\n{"sentence1": \n', "a.jsonl, line 2: "),
        ("a.jsonl", b'{"sentence1": "x"}\n\n["y"]\n', "a.jsonl, line 3: "),
        ("a.jsonl", b'{"sentence1": "x"}\n{"sentence1": "\\ud800"}\n', "a.jsonl, line 2: "),
        ("a.jsonl", b'{"sentence1": "x", "n": 1e999}\n', "a.jsonl, line 1: "),
        ("a.jsonl", b'{"sentence1": "x\xff"}\n', "a.jsonl: line 1: byte 0xff"),
        ("a.jsonl", b'{"sentence1": "x", "sentence1": "y"}\n', "line 1: "),
        ("a.jsonl", b'{"sentence1": 3}\n', "a.jsonl: column 'sentence1'"),
        ("a.jsonl", b"\n", "'sentence1'"),
        ("a.csv", b"sentence1\nfine\n\xff\n", "a.csv: line 3: byte 0xff"),
        ("a.csv", b'sentence1,b\nx,y\n"z,w\n', "a.csv: "),
        ("a.txt", b"fine\n\xff\n", "a.txt: line 2: byte 0xff"),
        ("a.parquet", b"PAR1", "a.parquet: "),
        ("a.xlsx", b"", "'.xlsx'"),
    ],
)
def test_what_cannot_be_read_is_named(
    name: str, content: bytes, message: str, opinion_run: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refused(opinion_run, tmp_path / name)


def test_columns_that_are_not_there_are_told_at_once(opinion_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sentence1,idea\nx,1\n")
    said = refused(opinion_run, tmp_path / "rows.csv", "--columns", "ide", "--columns", "nothing")
    assert "'ide'. Did you mean 'idea'?" in said
    assert "'nothing'" in said
    (tmp_path / "both.csv").write_text("sentence1,label,input_label\nx,1,2\n")
    said = refused(opinion_run, tmp_path / "both.csv", "--columns", "label", "--columns", "input_label")
    assert "input_label, input_label" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a text", "--output", "o.parquet"], "--output: "),
        (["--file", "-", "--output", "o.parquet"], "--output: "),
        (["--file", "in.csv", "--output", "o.xlsx"], "o.xlsx"),
        (["--file", "in.parquet", "--output", "in.parquet"], "in.parquet"),
        (["--file", "in.csv", "--columns", "id"], "--columns: "),
        (["a text", "--manifest", "m.yaml"], "--manifest: "),
        (["--output", "o.csv", "--manifest", "m"], "--output: "),
        (["--file", "gone.csv", "--output", "o.parquet"], "gone.csv: "),
    ],
)
def test_flags_that_do_not_fit_are_refused(opinion_run: Path, arguments: list[str], message: str) -> None:
    result = invoke("predict", opinion_run, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.replace("\n", " ")


def test_repeated_it_says_so_and_another_student_is_refused(opinion_run: Path, roles_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sentence1,sentence2\nx,y\n")
    arguments = ["--file", tmp_path / "rows.csv", "--output", tmp_path / "out.parquet", "--json"]
    first, again = (json.loads(invoke("predict", opinion_run, *arguments).stdout) for _ in range(2))
    assert (first["rows"], first["written"], again["written"]) == (1, True, False)
    result = invoke("predict", roles_run, *arguments)
    assert result.exit_code == 2
    assert "student: " in result.stderr


def test_margins_are_the_best_less_the_second() -> None:
    p_NC = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], dtype=np.float32)
    np.testing.assert_allclose(margins(p_NC), [0.2, 0.7, 0], atol=1e-7)
    logits_NC = np.log(np.array([[1, 3], [1, 1]], dtype=np.float32))
    columns = answer_columns(Target(kind="classes", names=("no", "yes")), logits_NC)
    assert pa.table(columns).to_pylist() == [
        {"label": "yes", "probabilities": {"no": 0.25, "yes": 0.75}, "margin": 0.5},
        {"label": "no", "probabilities": {"no": 0.5, "yes": 0.5}, "margin": 0.0},
    ]
