"""``distill quickstart``: what it finds in a file, its splits and judgements, and whole runs."""

import importlib.util
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import yaml

from distill.apps.app_settings import OwnFile
from distill.apps.quickstart.inspect_rows import look_at, with_scores_of
from distill.apps.quickstart.quickstart import next_commands, rows_to_test, splits_of, usual_epochs
from distill.apps.report.set_page import set_page
from distill.apps.word_baseline import NAME as WORD_BASELINE
from pipeline.errors import ConfigError, DataError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.tasks.target import softmax
from pipeline.tasks.task import load_task
from tests.helpers.commands import invoke
from tests.helpers.forked_steps import fork_steps
from tests.helpers.messages import naming

COUNT = 120


def texts(count: int = COUNT) -> list[str]:
    return [f"text number {k}" for k in range(count)]


def written(folder: Path, **columns: list[Any]) -> Path:
    """A file of these columns: CSV, or JSON lines if there are lists."""
    table = pa.table(columns)
    if any(pa.types.is_nested(field.type) for field in table.schema):
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path = folder / "rows.csv"
        pc.write_csv(table, path)
    return path


@pytest.mark.parametrize(
    ("values", "type_", "labels", "score_range"),
    [
        (["no", "yes"], "classification", ("no", "yes"), None),
        ([10, 2, 1], "classification", ("1", "2", "10"), None),
        ([True, False], "classification", ("false", "true"), None),
        ([0.5, 1.25, 4.0], "regression", (), (0.5, 4.0)),
        (list(range(40)), "regression", (), (0.0, 39.0)),
        ([["a"], ["a", "b"], ["c"]], "multilabel", ("a", "b", "c"), None),
        (["01", "02", "10"], "classification", ("01", "02", "10"), None),
        (["1.1", "1.10"], "classification", ("1.1", "1.10"), None),
        ([0.0, 1.0, None], "classification", ("0", "1"), None),
        (["2", "inf"], "classification", ("2", "inf"), None),
    ],
)
def test_the_kind_of_task_follows_from_the_labels(
    values: list[Any], type_: str, labels: tuple[str, ...], score_range: tuple[float, float] | None, tmp_path: Path
) -> None:
    path = written(tmp_path, message=texts(), category=(values * COUNT)[:COUNT])
    look = look_at(path, ["message"], "category")
    assert (look.type, look.labels, look.score_range) == (type_, labels, score_range)


@pytest.mark.parametrize(
    "label",
    [
        pa.array(["no", "yes"] * (COUNT // 2)).dictionary_encode(),
        pa.array(["no", "yes"] * (COUNT // 2), pa.string_view()),
        pa.array([b"no", b"yes"] * (COUNT // 2)),
    ],
)
def test_labels_of_any_type_of_arrow_are_names(label: pa.Array, tmp_path: Path) -> None:
    table = pa.table({"message": pa.array(texts(), pa.string_view()), "category": label})
    pq.write_table(table, tmp_path / "r.parquet")
    assert look_at(tmp_path / "r.parquet", ["message"], "category").labels == ("no", "yes")


def test_words_with_a_label_each_are_labelled_words(tmp_path: Path) -> None:
    path = written(tmp_path, tokens=[["anna", f"w{k}"] for k in range(COUNT)], tags=[["B-PER", "O"]] * COUNT)
    look = look_at(path, ["tokens"], "tags")
    assert (look.type, look.labels, look.metrics) == ("token_labels", ("B-PER", "O"), ("span_f1", "accuracy"))
    config = OwnFile(file=path, text="tokens", label="tags", model_name_or_path="bert")
    predicted, served, better = next_commands(config, tmp_path, look, "runs/tokens")
    assert [shlex.split(line)[1] for line in (predicted, served)] == ["predict", "serve"]
    assert shlex.split(better)[1:3] == ["quickstart", str(path)]  # teacher-dump adds no text to labelled words


def test_what_is_odd_is_found(tmp_path: Path) -> None:
    message = ["same", "Same ", "\u00a0\u200b", *texts(COUNT - 3)]
    category = ["no", "yes", "no", *(["no"] * (COUNT - 6)), "No.", "no", None]
    look = look_at(written(tmp_path, message=message, category=category), ["message"], "category")
    assert len(look.rows) == COUNT - 2
    assert look.findings["left out"].startswith("2 rows")
    assert str(COUNT - 1) in look.findings["left out"]  # the row in the file
    assert look.findings["contradictions"].startswith("1 text ")
    assert look.findings["repeated texts"] == "1 row"
    assert look.findings["near copies"].startswith(f"2 of {COUNT - 2} rows, in 1 group of up to 2")
    assert look.findings["similar labels"].startswith("'No.' and 'no'")


@pytest.mark.parametrize(
    ("text", "label", "error", "names"),
    [
        ("mesage", "categry", ConfigError, ("--text mesage", "--label categry", "'category'")),
        ("message", "message", ConfigError, ("message",)),
        ("message", "id", DataError, ("'id'", "--label")),
        ("message", "constant", DataError, ("'constant'",)),
    ],
)
def test_columns_that_cannot_serve_are_refused_by_name(
    text: str, label: str, error: type[Exception], names: tuple[str, ...], tmp_path: Path
) -> None:
    ids = [f"row {k}" for k in range(COUNT)]
    path = written(tmp_path, message=texts(), category=["a", "b"] * (COUNT // 2), id=ids, constant=["a"] * COUNT)
    with pytest.raises(error, match=naming(*names)):
        look_at(path, [text], label)


def test_a_file_without_a_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a fine film,yes\n" * COUNT)
    with pytest.raises(ConfigError, match=naming("rows.csv", "--text message", "first line")):
        look_at(path, ["message"], "category")


def test_a_null_among_labels_is_named_with_its_rows(tmp_path: Path) -> None:
    values = [["a"], None, [], ["b", None], ["a", "b"], ["c", None]]
    path = written(tmp_path, message=texts(), category=(values * COUNT)[:COUNT])
    with pytest.raises(DataError, match=naming("'category'", "null in rows 3, 5, 9, … (40 rows)")):
        look_at(path, ["message"], "category")


def test_words_without_a_label_each_are_named_with_their_rows(tmp_path: Path) -> None:
    tags = [["O", "O"]] * (COUNT - 1) + [["O"]]
    path = written(tmp_path, tokens=[["anna", f"w{k}"] for k in range(COUNT)], tags=tags)
    with pytest.raises(DataError, match=naming(str(path), f"row {COUNT - 1}")):
        look_at(path, ["tokens"], "tags")


def test_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("rows.csv", "3 rows")):
        look_at(written(tmp_path, message=texts(3), category=["a", "b", "a"]), ["message"], "category")


def test_a_tenth_of_each_class_is_tested_and_copies_stay_together(tmp_path: Path) -> None:
    message = [*texts(200), *(f"  {text.upper()}\t" for text in texts(40))]
    category = [*(["rare"] * 20), *(["often"] * 180), *(["rare"] * 20), *(["often"] * 20)]
    look = look_at(written(tmp_path, message=message, category=category), ["message"], "category")
    found = splits_of(look)
    inputs = {split: {row["message"].strip().lower() for row in rows} for split, rows in found.items()}
    assert not inputs["train"] & inputs["test"]
    assert len(found["train"]) + len(found["test"]) == 240
    tested = {row["message"].strip().lower(): row["category"] for row in found["test"]}
    assert sorted(tested.values()).count("rare") == 2  # of 20 texts
    assert sorted(tested.values()).count("often") == 18  # of 180
    order = sorted(range(240), key=lambda k: -k)
    other = look_at(
        written(tmp_path, message=[message[k] for k in order], category=[category[k] for k in order]),
        ["message"],
        "category",
    )
    assert {row["message"].strip().lower() for row in splits_of(other)["test"]} == inputs[
        "test"
    ]  # whatever the order of rows


def test_near_copies_or_rows_with_the_same_value_are_in_one_split(tmp_path: Path) -> None:
    parts = ("a problem", "a problem now")
    message = [f"{k} {k} {k} {k} has {part} in {k}" for k in range(100) for part in parts]
    customer = [*(k % 40 for k in range(199)), None]
    path = written(tmp_path, message=message, category=["no", "yes", "yes"] * 66 + ["no"] * 2, customer=customer)
    look = look_at(path, ["message"], "category")
    assert look.findings["near copies"].startswith("200 of 200 rows, in 100 groups of up to 2")
    found = {split: {row["message"].split()[0] for row in rows} for split, rows in splits_of(look).items()}
    assert not found["train"] & found["test"]
    assert len(found["test"]) == 10
    look = look_at(path, ["message"], "category", group="customer")
    assert look.findings["rows with an equal customer"].startswith("199 of 200 rows, in 40 groups of up to 5")
    by_customer = {split: {row["customer"] for row in rows} for split, rows in splits_of(look).items()}
    assert not by_customer["train"] & by_customer["test"]
    assert 15 <= len(splits_of(look)["test"]) <= 20
    for group in ("client", "message"):
        with pytest.raises(ConfigError, match=naming(f"--group {group}: ")):
            look_at(path, ["message"], "category", group=group)


def test_a_test_file_is_the_test_split_and_its_texts_are_left_out_of_training(tmp_path: Path) -> None:
    look = look_at(written(tmp_path, message=texts(), category=["no", "yes"] * (COUNT // 2)), ["message"], "category")
    test = tmp_path / "test.jsonl"
    rows = [
        {"category": label, "message": text} for text, label in [("TEXT number 3", "no"), ("new", "Yes"), ("", "no")]
    ]
    test.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"category": None, "message": "unknown"}]))
    manifest = yaml.safe_dump(
        {"name": "own", "type": "classification", "labels": ["no", "yes"], "metrics": ["accuracy"]}
        | {"columns": {"sentence1": "message", "label": "category"}, "splits": {"train": None, "test": None}}
    )
    tested, num_unfit = rows_to_test(look, manifest, test)
    assert num_unfit == 2
    assert tested == [
        {"message": "TEXT number 3", "category": "no", "file_row": 0},
        {"message": "new", "category": "yes", "file_row": 1},
    ]
    found = splits_of(look, tested)
    assert found["test"] == tested
    assert len(found["train"]) == COUNT - 1
    assert "text number 3" not in {row["message"] for row in found["train"]}


@pytest.mark.parametrize(("rare", "metrics"), [(43, ("accuracy", "macro_f1")), (41, ("macro_f1", "accuracy"))])
def test_macro_f1_comes_first_if_one_class_has_most_rows(rare: int, metrics: tuple[str, ...], tmp_path: Path) -> None:
    path = written(tmp_path, message=texts(), category=["yes"] * rare + ["no"] * (COUNT - rare))
    look = look_at(path, ["message"], "category")
    assert (look.metrics, "skewed" in look.findings) == (metrics, metrics[0] == "macro_f1")


def test_near_copies_of_test_rows_are_left_out_of_training(tmp_path: Path) -> None:
    message = [f"{k} {k} {k} {k} has a problem in {k}" for k in range(COUNT)]
    look = look_at(written(tmp_path, message=message, category=["no", "yes"] * (COUNT // 2)), ["message"], "category")
    tested = [{"message": f"Again: {message[7]}!", "category": "no", "file_row": 0}]
    assert [row["file_row"] for row in splits_of(look, tested)["train"]] == [k for k in range(COUNT) if k != 7]


def test_the_folder_of_another_encoder_stays_as_it_is(tmp_path: Path) -> None:
    path, folder = written(tmp_path, message=texts(), category=["no", "yes"] * (COUNT // 2)), tmp_path / "out"
    folder.mkdir()
    (folder / "labels.parquet").write_text("of a student without a teacher")
    flags = ("--text", "message", "--label", "category", "--output-dir", folder)
    result = invoke("quickstart", path, *flags, "--model-name-or-path", tmp_path)
    assert (result.exit_code, "--output-dir" in result.stderr) == (2, True)
    assert [file.name for file in folder.iterdir()] == ["labels.parquet"]


def test_the_folder_of_other_rows_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def stop(command: list[str], *_: Path) -> str:
        steps.append(command[0])
        raise DataError("stopped at the first step")

    monkeypatch.setattr("distill.apps.quickstart.quickstart.run_command", stop)
    labels, folder = ["no", "yes"] * (COUNT // 2), tmp_path / "out"
    flags = ("--text", "message", "--output-dir", folder, "--model-name-or-path", "none", "--label")
    path = written(tmp_path, message=texts(), category=labels, other=[*labels[1:], "no"])
    for label, message, is_other in (
        ("category", "stopped", False),
        ("category", "stopped", False),  # repeated, it goes on
        ("other", "--output-dir", True),
    ):
        result = invoke("quickstart", path, *flags, label)
        assert (result.exit_code, message in result.stderr) == (2, True)
        assert len(steps) == (2 if is_other else steps.count("import"))
    written(tmp_path, message=[*texts()[1:], "new"], category=labels)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    result = invoke("quickstart", path, *flags, "category")
    assert (result.exit_code, "--output-dir" in result.stderr, len(steps)) == (2, True, 2)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_test_file_with_an_unknown_label_or_column_is_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, message=texts(), category=["no", "yes"] * (COUNT // 2))
    arguments = ("quickstart", path, "--text", "message", "--label", "category", "--model-name-or-path", "none")
    for name, row, words in (
        ("labels", {"message": "a", "category": "yess"}, ("'yess'", "row 0", "'yes'")),
        ("columns", {"mesage": "a", "category": "yes"}, ("'message'",)),
    ):
        test = tmp_path / f"{name}.jsonl"
        test.write_text(json.dumps(row) + "\n")
        result = invoke(*arguments, "--test", test)
        assert result.exit_code == 2, result.stderr
        assert all(word in result.stderr for word in (str(test), *words))
    assert not (tmp_path / "quickstart").exists()


@pytest.mark.parametrize(
    ("tested", "words"),
    [
        (range(COUNT), ("holds all 120 texts", "rows.csv")),
        (range(80), ("40 rows", "50")),
        (range(0, COUNT, 2), ("'yes'", "two")),
        (None, ("different texts", "--test")),
    ],
)
def test_rows_and_labels_are_counted_after_the_test_rows_are_taken(
    tested: range | None, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = texts() if tested is not None else ["one", "two"] * (COUNT // 2)
    path = written(tmp_path, message=message, category=["no", "yes"] * (COUNT // 2))
    arguments = ["quickstart", path, "--text", "message", "--label", "category", "--model-name-or-path", "none"]
    if tested is not None:
        lines = [f"text number {k},{('no', 'yes')[k % 2]}" for k in tested]
        (tmp_path / "test.csv").write_text("\n".join(["message,category", *lines]) + "\n")
        arguments += ["--test", "test.csv"]
    result = invoke(*arguments)
    assert result.exit_code == 2, result.stderr
    assert all(word in result.stderr for word in words)
    assert not (tmp_path / "quickstart").exists()


def test_scores_of_a_test_file_widen_the_range(tmp_path: Path) -> None:
    look = look_at(written(tmp_path, message=texts(), stars=[0.5, 4.0] * (COUNT // 2)), ["message"], "stars")
    (tmp_path / "test.csv").write_text("message,stars\nnew,4.5\nother,\n")
    assert with_scores_of(look, tmp_path / "test.csv").score_range == (0.5, 4.5)
    (tmp_path / "test.csv").write_text("message,stars\nnew,-1\nother,-1\n")  # no gold
    assert with_scores_of(look, tmp_path / "test.csv").score_range == (0.5, 4.0)


def test_labels_that_may_be_missing_ones_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, message=texts(), category=["no", "nan", "yes", "N/A"] * (COUNT // 4))
    assert look_at(path, ["message"], "category").findings["labels or none?"].startswith("N/A, nan.")


@pytest.mark.parametrize(("count", "epochs"), [(120, 20), (800, 8), (2130, 4), (4000, 3)])
def test_a_teacher_of_few_rows_has_more_epochs(count: int, epochs: int, tmp_path: Path) -> None:
    path = written(tmp_path, message=texts(count), category=["no", "yes"] * (count // 2))
    assert usual_epochs(look_at(path, ["message"], "category")) == epochs


def _rows_of_the_file_are_shown(folder: Path, message: list[str]) -> None:
    """Checks every place that lists rows for a person."""
    store = ("--store", folder / "logits")
    for query in (
        "from hardest(rows) where split = 'train' limit 9",
        "from gold_disagreement(rows) where split = 'train'",
        "select *, message as sentence1 from rows_named where split = 'train'",
    ):
        found = json.loads(invoke("sql", query, *store, "--json").stdout)
        assert found
        assert all(row["sentence1"] == [*message, message[0]][row["file_row"]] for row in found)
        assert all(row["file_ticket"] == f"T-{row['file_row']}" for row in found)
    traced = json.loads(invoke("sql", "--explain-row", "rows:train:0", *store, "--json").stdout)["row"]
    assert traced["sentence1"] == message[traced["file_row"]]
    assert json.loads(invoke("sql", "select * from examples limit 1", *store, "--json").stdout)[0]["sentence1"]
    page = set_page(folder / "logits" / "rows")
    tables = [table for section in page.sections for table in section.tables if "file_row" in table.columns]
    assert "Hardest rows" in {table.title for table in tables}
    shown = [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]
    shown = [row for row in shown if row["file_ticket"]]  # the test file has no tickets
    assert shown
    assert all(row["message"] == [*message, message[0]][row["file_row"]] for row in shown)


def test_a_file_becomes_a_student_without_a_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fork_steps(monkeypatch)
    message = [f"this is {word} number {k}" for k in range(COUNT) for word in ("good", "bad")]
    # One text has both labels, and one has a label of blanks.
    category = ["yes", "no"] * COUNT
    tickets = [f"T-{k}" for k in range(len(message) + 2)]
    path = written(tmp_path, message=[*message, message[0], "x"], category=[*category, "no", " "], ticket=tickets)
    # Most test rows are not in the file, one is, and one cannot be scored.
    new = [f"this is {word} again {k},{label}" for k in range(9) for word, label in (("good", "yes"), ("bad", "no"))]
    (tmp_path / "test.csv").write_text(
        "\n".join(["message,category", f"{message[1]},no", *new, "unknown,", "so good,no"]) + "\n"
    )
    flags = ("--text", "message", "--label", "category", "--columns", "ticket", "--test", tmp_path / "test.csv")
    arguments = ("quickstart", path, *flags, "--model-name-or-path", "none")
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["scores"]["student"]["accuracy"] > 0.9
    assert found["test_rows"] == 20
    assert found["findings"]["left out of the test"].startswith("1 row ")
    assert set(found["scores"]) == {"student", "words and characters, TF-IDF"}
    assert "teacher: none" in result.stderr
    folder = tmp_path / "quickstart" / "rows"
    # These words are in BERT's vocabulary, so the student starts from the vectors that ship.
    record = json.loads((folder / "runs" / "rows" / "run.json").read_text())
    assert record["settings"]["pretrained_vectors_sha256"]
    manifest = load_task(manifest=folder / "rows.yaml")
    assert (manifest.columns.sentence1, manifest.labels) == (("message",), ("no", "yes"))
    assert yaml.safe_load((folder / "rows.yaml").read_text())["columns"]["label"] == "category"
    assert pq.read_table(folder / "data" / "rows" / "test.parquet").column_names == [
        "message",
        "category",
        "file_row",
        "ticket",
    ]
    _rows_of_the_file_are_shown(folder, message)
    page = (folder / "report.html").read_text()
    # Labels that learn from themselves are no teacher with perfect scores.
    assert ("The largest mistakes of the student" in page, "Reliability of the teacher" in page) == (True, False)
    assert all(not parts["teacher"] and not parts["fidelity"] for parts in record["result"]["evaluation"].values())
    answered = json.loads(invoke("predict", folder / "runs" / "rows", "this is good", "--json").stdout)
    assert answered[0]["label"] == "yes"
    assert all(line.startswith("distill ") for line in found["next"])
    assert invoke(*shlex.split(found["next"][0])[1:]).exit_code == 0
    before = (folder / "runs" / "rows" / "model.safetensors").stat().st_mtime_ns
    (place,) = [line.removeprefix("$ cd ") for line in result.stderr.splitlines() if line.startswith("$ cd ")]
    monkeypatch.chdir(place)
    steps = [line.removeprefix("$ distill ") for line in result.stderr.splitlines() if line.startswith("$ distill ")]
    assert [step.split()[0] for step in steps] == ["import", "train-student", "evaluate", "report"]
    for step in steps[:3]:  # as printed, in the folder: what is finished is not done again
        assert invoke(*shlex.split(step)).exit_code == 0, step
    assert (folder / "runs" / "rows" / "model.safetensors").stat().st_mtime_ns == before
    find = importlib.util.find_spec
    missing = ("matplotlib", "sklearn")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find(name))
    monkeypatch.chdir(tmp_path)
    again = invoke(*arguments, "--json")
    assert again.exit_code == 0, again.stderr
    assert set(json.loads(again.stdout)["scores"]) == {"student"}
    assert "distill-offline[report]" in again.stderr
    assert "distill-offline[sklearn]" in again.stderr
    assert "$ distill report" not in again.stderr


@pytest.mark.slow
def test_a_teacher_labels_variants_and_more_text(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fork_steps(monkeypatch)
    message = [f"the food was {word} {k}" for k in range(COUNT) for word in ("good", "bad")]
    # A tiny random teacher only learns the most frequent label.
    category = ["yes", "no", "yes", "no", "yes", "maybe"] * (COUNT // 3)
    path = written(tmp_path, message=message, category=category)
    (tmp_path / "more.csv").write_text("\n".join(["message", *(f"more text of number {k}" for k in range(7))]) + "\n")
    flags = ("--text", "message", "--label", "category", "--model-name-or-path", work / "bert", "--num-variants", "2")
    result = invoke("quickstart", path, *flags, "--unlabelled", "more.csv", "--json")
    assert result.exit_code == 0, result.stderr
    folder = tmp_path / "quickstart" / "rows"
    logit_set = ExampleSet.open(folder / "logits" / "rows")
    origins = Counter(logit_set.read("train", ("origin",)).column("origin").to_pylist())
    assert origins["unlabelled"] == 7
    assert 0 < origins["mask-pos"] <= 2 * origins["original"]
    assert logit_set.record.teacher.name == "teacher-40-epochs"
    assert "never predicts 2 labels" in result.stderr
    assert re.search(r"variants: .* in about \d+ min", result.stderr)
    found = json.loads(result.stdout)
    assert set(found["scores"]) == {"student", "teacher", "words and characters, TF-IDF"}
    assert "--unlabelled" not in found["next"][-1]


@pytest.mark.parametrize(
    ("label", "flags", "named"),
    [
        ("category", ("--model-name-or-path", "none"), ("--unlabelled", "none")),
        ("tags", ("--model-name-or-path", "bert"), ("--unlabelled", "labelled words")),
        ("category", ("--model-name-or-path", "bert"), ("more.csv",)),
    ],
)
def test_more_text_that_cannot_be_labelled_is_refused(
    label: str, flags: tuple[str, ...], named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    columns: dict[str, list[Any]] = {"category": ["yes", "no"] * (COUNT // 2), "tags": [["B-X", "O"]] * COUNT}
    message: list[Any] = texts() if label == "category" else [text.split()[:2] for text in texts()]
    path = written(tmp_path, message=message, **{label: columns[label]})
    result = invoke("quickstart", path, "--text", "message", "--label", label, *flags, "--unlabelled", "more.csv")
    assert result.exit_code == 2
    assert all(name in result.stderr for name in named), result.stderr
    assert not (tmp_path / "quickstart").exists()


def test_labelled_words_become_a_student_without_a_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fork_steps(monkeypatch)
    rows = [{"words": [name, "met", f"w{k}"], "tags": ["B-PER", "O", "O"]} for k in range(60) for name in ("ann", "bo")]
    rows.append({"words": rows[0]["words"], "tags": ["O", "O", "O"]})  # a contradiction
    path = tmp_path / "people.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--text", "words", "--label", "tags", "--model-name-or-path", "none", "--json")
    result = invoke("quickstart", path, *flags)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["scores"][WORD_BASELINE] == {"span_f1": 1.0, "accuracy": 1.0}
    folder = tmp_path / "quickstart" / "people"
    words = TokenLabelSet.open(folder / "logits" / "people")
    probability_TC = softmax(np.concatenate([words.read(split).teacher_TC for split in words.splits]))
    # Gold is a teacher that is sure, except where copies of a sentence have different labels.
    assert sorted({round(float(p), 3) for p in probability_TC.max(axis=1)}) == [0.5, 1.0]
    (answer,) = json.loads(invoke("predict", folder / "runs" / "people", "ann met bo", "--json").stdout)
    assert [word["text"] for word in answer["words"]] == ["ann", "met", "bo"]
