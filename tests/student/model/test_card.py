import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import DatasetCard, ModelCard

from pipeline.record_file import Record, read_work_record
from pipeline.sets.card import write_card_and_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record_parts import HubDataset
from pipeline.tasks.target import Target
from student.export.export import with_small_tables
from student.model.card import card_text
from student.model.student import Student, num_bytes, num_parameters
from student.predict.predictor import Predictor
from student.summary import size_line
from student.train import train
from teacher.dumps import dump
from tests.helpers.dumps import dump_config
from tests.helpers.students import tiny_config

KEPT = ("config.json", "model.safetensors", "tokenizer.json", "README.md")


def card_of(run: Path) -> ModelCard:
    card: ModelCard = ModelCard.load(run / "README.md")
    return card


def front_matter(card: ModelCard) -> dict[str, Any]:
    """The metadata as the hub reads it."""
    return vars(card.data)


def record_of(run: Path) -> Record:
    return dict(json.loads((run / "run.json").read_text()))


def table(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without the line under its head."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if set("".join(row)) != {"-"}]


def test_front_matter_is_what_the_hub_reads(opinion_run: Path) -> None:
    data = front_matter(card_of(opinion_run))
    assert (data["library_name"], data["pipeline_tag"]) == ("distill", "text-classification")
    assert {"distillation", "cmow", "opinion"} <= set(data["tags"])


def test_the_hub_reads_licence_language_data_set_and_teacher(opinion_set: ExampleSet, tmp_path: Path) -> None:
    shutil.copytree(opinion_set.root, tmp_path / "opinion")
    record = opinion_set.record
    assert record.task is not None
    found = {"license": "cc-by-4.0", "language": "en", "hub": HubDataset(id="owner/data", config="opinion")}
    teacher = record.teacher.model_copy(update={"base_model": "owner/bert"})
    changes = {"task": record.task.model_copy(update=found), "teacher": teacher}
    write_card_and_record(tmp_path / "opinion", record.model_copy(update=changes))
    train(tiny_config(tmp_path / "opinion", tmp_path / "run", num_train_epochs=1), "")
    data = front_matter(card_of(tmp_path / "run"))
    assert (data["license"], data["language"]) == ("cc-by-4.0", ["en"])
    assert (data["datasets"], data["base_model"]) == (["owner/data"], ["owner/bert"])
    (entry, *_) = data["eval_results"]
    assert (entry.dataset_type, entry.dataset_config) == ("owner/data", "opinion")
    of_set = vars(DatasetCard.load(tmp_path / "opinion" / "README.md").data)
    assert (of_set["license"], of_set["language"], of_set["source_datasets"]) == ("cc-by-4.0", ["en"], ["owner/data"])


def test_what_is_unknown_is_not_in_the_front_matter(opinion_run: Path) -> None:
    data = front_matter(card_of(opinion_run))
    assert all(data.get(key) is None for key in ("license", "language", "datasets", "base_model"))


def test_the_hub_reads_the_scores_of_every_split(opinion_run: Path) -> None:
    entries, evaluation = (
        front_matter(card_of(opinion_run))["eval_results"],
        record_of(opinion_run)["result"]["evaluation"],
    )
    listed = {(entry.dataset_split, entry.metric_type): entry.metric_value for entry in entries}
    assert listed == {
        (split, name): value for split, parts in evaluation.items() for name, value in parts["gold"].items()
    }
    assert {entry.dataset_name for entry in entries} == {"opinion"}


@pytest.mark.parametrize("run_name", ["opinion_run", "roles_run"])
def test_a_card_holds_scores_interval_and_command(run_name: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(run_name)
    record, text = record_of(run), card_of(run).text
    parts = record["result"]["evaluation"]["validation"]
    low, high = parts["interval"]["accuracy"]
    values = [parts[key]["accuracy"] for key in ("gold", "teacher", "majority")]
    student, teacher, guessing = (f"{value:.4f}" for value in values)
    assert table(text)[1:] == [["validation", "accuracy", student, f"{low:.4f} to {high:.4f}", teacher, guessing]]
    for expected in (record["command"], *record["settings"]["logit_set_fingerprints"], record["settings"]["query"]):
        assert f"`{expected}`" in text
    assert f"torch {version('torch')}" in text
    assert "{{" not in text


def test_a_card_tells_the_architecture_and_the_size(roles_run: Path) -> None:
    text, student = card_of(roles_run).text, Student.load(roles_run)
    vocabulary, pairs = student.config.vocabulary_size, student.config.encoder.model_dump()["num_bigrams"]
    # vectors of 5, two matrices of 9, pairs of 32; four times 60 features, maxima among them, to 8; LayerNorm; 8 to 2
    parameters = vocabulary * (5 + 2 * 9) + pairs * 32 + (4 * 60 * 8 + 8) + 2 * 8 + (8 * 2 + 2)
    num_bytes = 4 * parameters + 8 * pairs  # each pair of tokens is kept, too
    assert f"{parameters:,} parameters, {num_bytes / 1000:.1f} kB" in text
    of_pairs = f"sums of vectors of 32 for {pairs} pairs of neighbouring tokens"
    for expected in ("sums and maxima of vectors of 5", "3 x 3 matrices, both ways", of_pairs, "u*w", "MLP, 8 wide"):
        assert expected in text
    assert "`different`, `same`" in text


@pytest.mark.parametrize("run_name", ["opinion_run", "roles_run"])
def test_the_cards_example_runs(
    run_name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Path = request.getfixturevalue(run_name)
    code = card_of(run).text.split("```python\n")[1].split("```")[0]
    exec(code.replace("PATH", str(run)), {})  # noqa: S102
    printed, names = capsys.readouterr().out, Student.load(run).config.target.names
    assert any(f"'label': '{name}'" in printed for name in names)


def test_every_metric_of_every_dev_split_has_a_row(opinion_run: Path) -> None:
    student, record = Student.load(opinion_run), record_of(opinion_run)
    names = ("accuracy", "f1")
    numbers = {key: {"accuracy": 0.5, "f1": 0.25} for key in ("gold", "teacher", "majority")}
    part: dict[str, Any] = numbers | {"interval": {name: [-0.125, 1.0] for name in names}}
    record["result"]["evaluation"] = {"matched": part, "mismatched": part}
    rows = table(card_text(student.config, 1, 1, record))[1:]
    assert [row[:2] for row in rows] == [[split, name] for split in ("matched", "mismatched") for name in names]
    assert rows[1][2:] == ["0.2500", "-0.1250 to 1.0000", "0.2500", "0.2500"]


def test_odd_names_and_commands_leave_the_front_matter_whole(opinion_run: Path) -> None:
    config, record = Student.load(opinion_run).config, record_of(opinion_run)
    target = Target(kind="classes", names=("no: 'é'", "---"))
    odd = config.model_copy(update={"target": target, "task": "a-b_c"})
    record["command"] = "distill train-student --where 'margin(logits) < 0.9'"
    card = ModelCard(card_text(odd, 1, 1, record))
    assert "a-b_c" in front_matter(card)["tags"]
    assert record["command"] in card.text
    assert "`no: 'é'`, `---`" in card.text


def test_a_run_without_dev_splits_has_a_card(work: Path, teachers: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="train"), "")
    train(tiny_config(tmp_path / "store" / "opinion", tmp_path / "run", num_train_epochs=1), "the command")
    card = card_of(tmp_path / "run")
    assert "opinion" in front_matter(card)["tags"]
    assert "`the command`" in card.text


def test_a_student_from_a_folder_saves_the_same_folder(opinion_run: Path, tmp_path: Path) -> None:
    student = Student.from_pretrained(opinion_run)
    assert not student.training
    student.save_pretrained(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == sorted(KEPT)
    for name in KEPT:
        assert (tmp_path / "copy" / name).read_bytes() == (opinion_run / name).read_bytes()
    texts = ["the food was great .", "the view was dull but the wine was superb ."]
    assert Predictor(tmp_path / "copy")(texts) == Predictor(opinion_run)(texts)
    Student.from_pretrained(str(tmp_path / "copy")).save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "README.md").read_bytes() == (opinion_run / "README.md").read_bytes()


@pytest.mark.parametrize(
    "changes", [{"head": "cnn", "matrix_size": 5, "vector_size": None}, {"head": "bilstm", "pairing": "joint"}]
)
def test_every_kind_of_student_comes_back(store: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    config = tiny_config(store / "roles", tmp_path / "run", num_train_epochs=1, **{"hidden_size": None} | changes)
    train(config, "")
    Student.from_pretrained(tmp_path / "run").save_pretrained(tmp_path / "copy")
    for name in KEPT:
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_student_with_small_tables_comes_back(opinion_run: Path, tmp_path: Path, dtype: Any) -> None:
    small = with_small_tables(Student.load(opinion_run), dtype)
    small.save_pretrained(tmp_path / "small")
    Student.from_pretrained(tmp_path / "small").save_pretrained(tmp_path / "again")
    for name in KEPT:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()


def test_a_run_records_its_size_and_its_teachers(opinion_run: Path, opinion_set: ExampleSet) -> None:
    teacher = opinion_set.record.teacher.num_parameters
    record = read_work_record(opinion_run / "run.json")
    student = Student.load(opinion_run)
    expected = {"parameters": num_parameters(student), "bytes": num_bytes(student), "teacher_parameters": teacher}
    assert record["result"]["size"] == expected
    assert f"{teacher:,} parameters" in card_of(opinion_run).text
    assert all(f"{expected[key]:,}" in str(size_line(record)) for key in ("parameters", "teacher_parameters"))
    del record["result"]["size"]  # as runs have it that were trained before
    assert size_line(record) is None


def test_a_changed_student_saves_its_change(opinion_run: Path, tmp_path: Path) -> None:
    student = Student.from_pretrained(opinion_run)
    with torch.no_grad():
        next(student.parameters()).add_(1)
    student.save_pretrained(tmp_path)
    assert torch.equal(next(Student.from_pretrained(tmp_path).parameters()), next(student.parameters()))
    assert not torch.equal(next(Student.load(opinion_run).parameters()), next(student.parameters()))


def test_a_student_without_a_card_gets_one(opinion_run: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(opinion_run, tmp_path / "bare", ignore=shutil.ignore_patterns("README.md", "run.json"))
    student = Student.from_pretrained(bare)
    student.save_pretrained(tmp_path / "saved")
    card = card_of(tmp_path / "saved")
    assert card.content.rstrip() == card_text(student.config, num_parameters(student), num_bytes(student)).rstrip()
    assert front_matter(card)["library_name"] == "distill"
    assert "Its scores were not recorded." in card.text
    assert not table(card.text)


@pytest.mark.parametrize("content", ["café\r\n".encode(), "café".encode("latin-1")], ids=["crlf", "latin-1"])
def test_ones_own_card_is_kept_as_it_is(opinion_run: Path, tmp_path: Path, content: bytes) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    (run / "README.md").write_bytes(content)
    Student.from_pretrained(run).save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "README.md").read_bytes() == content


def test_bins_and_scores_are_told_apart(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    for kind, names in (("bins", "`1`, `2`, `3`, `4`, `5`, `6`"), ("score", "`score`")):
        train(tiny_config(ratings[kind].root, tmp_path / kind, num_train_epochs=1), "")
        text = card_of(tmp_path / kind).text
        assert f"in this order: {names}." in text
        assert [row[1] for row in table(text)[1:]] == ["pearson", "spearmanr"]
