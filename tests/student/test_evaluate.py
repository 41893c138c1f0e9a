import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import DataError, DistillError, FingerprintMismatchError, IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME
from pipeline.tasks.metrics import bin_scores, bootstrap_intervals
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import Task
from student.data import load_examples
from student.evaluate import evaluate
from student.lessons.examples import evaluate_split, student_logits
from student.model.student import Student
from student.run_settings import EvaluateSettings
from student.summary import score_rows
from student.train import train
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.commands import invoke
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import rewritten
from tests.helpers.students import tiny_config, weights


def config(run: Path, logits: Path | None = None) -> EvaluateSettings:
    return EvaluateSettings.from_flags(run=run, set=None if logits is None else str(logits))


def constant_student(run: Path, logits: list[float]) -> Student:
    """A student with the same prediction for every input."""
    student = Student.load(run)
    weight, bias = list(student.head.parameters())[-2:]
    torch.nn.init.zeros_(weight)
    bias.data = torch.tensor(logits)
    return student


def test_known_answers(opinion_run: Path, opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    count = len(examples)
    label_N = np.array([1] * 10 + [0] * (count - 10))
    teacher_NC = np.array([[0, math.log(3)]] * 30 + [[math.log(3), 0]] * (count - 30), dtype=np.float32)
    examples = replace(examples, label_N=label_N, teacher_NC=teacher_NC)
    result = evaluate_split(constant_student(opinion_run, [2.0, 2.0 + math.log(3)]), examples)  # [1/4, 3/4]
    assert result["gold"] == {"accuracy": 10 / count}
    assert result["majority"] == {"accuracy": (count - 10) / count}
    assert result["teacher"] == {"accuracy": (10 + count - 30) / count}
    assert result["fidelity"]["agreement"] == 30 / count
    kl_of_the_others = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert result["fidelity"]["kl"] == pytest.approx(kl_of_the_others * (count - 30) / count)


def test_a_student_with_its_teachers_logits_is_faithful(roles_run: Path, roles_set: ExampleSet) -> None:
    student, examples = Student.load(roles_run), load_examples(roles_set, "validation")
    same = evaluate_split(student, replace(examples, teacher_NC=student_logits(student, examples)))
    assert same["fidelity"] == {"agreement": 1, "kl": pytest.approx(0, abs=1e-7)}
    assert same["gold"] == same["teacher"]
    opposite = evaluate_split(student, replace(examples, teacher_NC=-student_logits(student, examples)))
    assert opposite["fidelity"]["agreement"] == 0
    assert opposite["fidelity"]["kl"] > 0


def test_rows_without_gold_count_for_fidelity_alone(opinion_run: Path, opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    label_N = np.full(len(examples), NO_LABEL)
    result = evaluate_split(Student.load(opinion_run), replace(examples, label_N=label_N))
    assert (result["gold"], result["teacher"], result["majority"]) == ({}, {}, {})
    assert result["fidelity"].keys() == {"agreement", "kl"}
    label_N[:4] = [1, 1, 1, 0]
    result = evaluate_split(constant_student(opinion_run, [0.0, 1.0]), replace(examples, label_N=label_N))
    assert result["gold"] == result["majority"] == {"accuracy": 0.75}


def test_logits_come_in_the_order_of_the_rows(roles_run: Path, roles_set: ExampleSet) -> None:
    student, examples = Student.load(roles_run), load_examples(roles_set, "validation")
    with torch.inference_mode():
        one_by_one = [student.logits(*examples.batch([row]))[0].numpy() for row in range(len(examples))]
    np.testing.assert_allclose(student_logits(student, examples), np.stack(one_by_one), atol=1e-6)
    assert len({logits.tobytes() for logits in one_by_one}) > 20


def test_a_run_is_evaluated_on_the_dev_splits_of_its_set(roles_run: Path, roles_set: ExampleSet) -> None:
    result = evaluate(config(roles_run))
    assert result.keys() == {"validation"}
    parts = result["validation"]
    assert parts["teacher"] == roles_set.record.scores["validation"]
    assert parts == evaluate(config(roles_run, roles_set.root))["validation"]
    assert parts == evaluate_split(Student.load(roles_run), load_examples(roles_set, "validation"))


def test_the_texts_of_a_set_with_another_tokenizer_are_read(
    work: Path, opinion: Task, opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    texts = [*(work / "sentences.txt").read_text().splitlines(), "wholly new words"]
    create_tiny_bert(tmp_path / "bert", texts, hidden_size=32, num_layers=1)
    teacher = new_classifier(opinion, opinion_set.record.target, str(tmp_path / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, teacher.revision, tmp_path / "teacher")
    dump(dump_config(work, "opinion", tmp_path / "store", model_name_or_path=str(tmp_path / "teacher")), "")
    # The student reads the same texts, and the scores on gold do not depend on the teacher.
    found, own = (evaluate(config(opinion_run, root)) for root in (tmp_path / "store" / "opinion", opinion_set.root))
    assert found["validation"]["gold"] == own["validation"]["gold"]
    assert found["validation"]["fidelity"] != own["validation"]["fidelity"]


def test_a_set_with_other_labels_is_refused(roles_run: Path, store: Path) -> None:
    with pytest.raises(FingerprintMismatchError, match=naming("store/opinion: ", "logits")):
        evaluate(config(roles_run, store / "opinion"))


def test_a_student_of_sentences_refuses_pairs(work: Path, teachers: Path, opinion_run: Path, tmp_path: Path) -> None:
    text = (work / "roles.yaml").read_text().replace("[different, same]", "[bad, good]")
    (tmp_path / "pairs.yaml").write_text(text)
    places = {"manifest": tmp_path / "pairs.yaml", "model_name_or_path": str(teachers / "opinion")}
    dump(dump_config(work, "roles", tmp_path / "store", **places), "")
    with pytest.raises(DistillError, match=naming("store/roles: ", "pair")):
        evaluate(config(opinion_run, tmp_path / "store" / "roles"))


def test_a_set_without_dev_splits_is_refused(work: Path, teachers: Path, opinion_run: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path, splits="train"), "")
    with pytest.raises(DataError, match=naming("opinion: ")):
        evaluate(config(opinion_run, tmp_path / "opinion"))


def test_refusing_an_unverified_set_names_no_missing_flag(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "opinion")
    record = read_record(copy / FILE_NAME)
    (copy / FILE_NAME).write_text(json.dumps(record | {"state": "complete"}))
    with pytest.raises(IntegrityError, match=naming("opinion: ", "'complete'")) as caught:
        evaluate(config(opinion_run, copy))
    assert ("--allow-unverified" in str(caught.value)) == ("allow_unverified" in EvaluateSettings.model_fields)


def test_a_set_that_is_gone_is_a_clear_error(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "store" / "opinion")
    train(tiny_config(copy, tmp_path / "run", num_train_epochs=1), "")
    shutil.rmtree(copy)
    with pytest.raises(DataError, match=naming("store/opinion", "--store or DISTILL_STORE")):
        evaluate(config(tmp_path / "run"))


def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ", "run.json")):
        evaluate(config(tmp_path))


def test_teacher_and_student_are_scored_on_the_same_rows(opinion_run: Path, store: Path) -> None:
    examples = load_examples(ExampleSet.open(store / "opinion"), "validation")
    accuracy = float((examples.teacher_NC.argmax(axis=1) == examples.label_N).mean())
    assert evaluate(config(opinion_run))["validation"]["teacher"] == {"accuracy": accuracy}


def test_an_evaluation_holds_interval_and_glues_number(opinion_run: Path, opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    label_N = np.array([1] * 30 + [0] * (len(examples) - 30))
    always_1 = evaluate_split(constant_student(opinion_run, [0.0, 1.0]), replace(examples, label_N=label_N))
    assert always_1["glue"] == always_1["gold"]["accuracy"] == 30 / len(examples)
    low, high = always_1["interval"]["accuracy"]
    deviation = math.sqrt(0.75 * 0.25 / 40)  # of a share of 30 in 40
    assert (low, high) == pytest.approx((0.75 - 1.96 * deviation, 0.75 + 1.96 * deviation), abs=0.03)
    assert always_1["bins"] == {}
    nothing = np.full(len(examples), NO_LABEL)
    unknown = evaluate_split(constant_student(opinion_run, [0.0, 1.0]), replace(examples, label_N=nothing))
    assert (unknown["interval"], unknown["glue"], unknown["bins"]) == ({}, None, {})


def test_a_metric_that_only_chose_the_epoch_is_no_part_of_glues_number(opinion_set: ExampleSet, tmp_path: Path) -> None:
    run = train(tiny_config(opinion_set.root, tmp_path, metric_for_best_model="macro_f1", num_train_epochs=1), "")
    for parts in (run["result"]["evaluation"]["validation"], evaluate(config(tmp_path))["validation"]):
        assert list(parts["gold"]) == ["macro_f1", "accuracy"]
        assert parts["gold"]["macro_f1"] != parts["glue"] == parts["gold"]["accuracy"]
    assert [row[1] for row in score_rows(evaluate(config(tmp_path)))] == ["macro_f1", "accuracy"]


@pytest.fixture(scope="module")
def rating_runs(ratings: dict[str, ExampleSet], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs on the task with scores, by the kind of the target; read only."""
    runs = {kind: tmp_path_factory.mktemp("rating_runs") / kind for kind in ratings}
    for kind, run in runs.items():
        train(tiny_config(ratings[kind].root, run), "")
    return runs


def test_scores_have_two_metrics_and_glues_number_is_their_mean(
    ratings: dict[str, ExampleSet], rating_runs: dict[str, Path]
) -> None:
    for kind, run in rating_runs.items():
        parts = evaluate(config(run))["validation"]
        assert list(parts["gold"]) == list(parts["interval"]) == ["pearson", "spearmanr"]
        assert parts["glue"] == pytest.approx(sum(parts["gold"].values()) / 2)
        assert all(low < parts["gold"][name] < high for name, (low, high) in parts["interval"].items())
        student, examples = Student.load(run), load_examples(ratings[kind], "validation")
        rows = (student_logits(student, examples), examples.label_N, examples.score_N)
        target = student.config.target
        assert parts["interval"] == bootstrap_intervals(("pearson", "spearmanr"), target, *rows)
        assert parts["bins"] == bin_scores(("pearson", "spearmanr"), target, rows[0], rows[2])
        assert len(parts["bins"]) == {"score": 0, "bins": 4}[kind]


def test_a_runs_record_holds_what_evaluate_says(rating_runs: dict[str, Path]) -> None:
    for run in rating_runs.values():
        assert read_record(run / "run.json")["result"]["evaluation"] == evaluate(config(run))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]


def shown(number: float) -> str:
    return f"{number:.4f}".rstrip("0").rstrip(".") if abs(number) >= 1e-3 or number == 0 else f"{number:.4g}"


def test_the_command_shows_every_number(rating_runs: dict[str, Path]) -> None:
    parts = evaluate(config(rating_runs["bins"]))["validation"]
    result = CliRunner().invoke(app, ["evaluate", str(rating_runs["bins"])], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    rows = [cells(line) for line in result.stdout.splitlines() if "validation" in line]
    expected = [
        ["validation", name, shown(value), "{:.3f} to {:.3f}".format(*parts["interval"][name])]
        + [shown(parts[key][name]) for key in ("teacher", "majority")]
        for name, value in parts["gold"].items()
    ]
    expected += [["validation", "mean", shown(parts["glue"]), "", "", ""]]
    expected += [["validation", name, shown(value)] for name, value in parts["bins"].items()]
    expected += [["validation", f"{name} with the teacher", shown(value)] for name, value in parts["fidelity"].items()]
    assert rows == expected
    assert "95 %" in result.stdout


def test_the_command_prints_the_evaluation_as_json(opinion_run: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(opinion_run), "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)["validation"]
    assert printed == evaluate(config(opinion_run))["validation"] | {"judgements": printed["judgements"]}


def test_the_command_names_one_metric_without_a_mean(opinion_run: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(opinion_run)])
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.stdout
    assert " mean " not in result.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "linear", "hidden_size": None},
        {"head": "cnn", "hidden_size": None, "matrix_size": 5, "vector_size": 25},
        {"head": "bilstm", "hidden_size": 4},
        {"head": "bilstm", "hidden_size": 4, "pairing": "joint", "token_dropout": 0.2},
        {"head": "mlp", "pairing": "compare"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_every_head_is_trained_to_the_same_bits_by_the_same_seed(
    store: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    results = [
        train(tiny_config(store / "roles", tmp_path / name, **{"seed": 3} | changes | more), "")["result"]
        for name, more in (("one", {}), ("two", {}), ("other", {"seed": 4}))
    ]
    one, two, other = (weights(tmp_path / name) for name in ("one", "two", "other"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert results[0] == results[1]
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_is_not_finished_is_not_evaluated_without_a_word(
    opinion_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(opinion_run, tmp_path / "run")
    evaluate(config(tmp_path / "run"))
    assert str(tmp_path / "run") not in capsys.readouterr().err
    record = read_record(tmp_path / "run" / "run.json")
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"state": "running"}))
    evaluate(config(tmp_path / "run"))
    assert f"{tmp_path / 'run'}: " in capsys.readouterr().err


def test_a_set_without_dev_rows_is_trained_on_with_a_warning_and_without_an_empty_table(
    work: Path, teachers: Path, tmp_path: Path
) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="train"), "distill teacher-dump")
    sizes = ["--matrix-size", "3", "--vector-size", "5", "--num-train-epochs", "1"]
    folders = ["--set", str(tmp_path / "store" / "opinion"), "--output-dir", str(tmp_path / "run")]
    first, again = (CliRunner().invoke(app, ["train-student", *folders, *sizes]) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0), first.stderr
    assert "warning: " in first.stderr
    assert first.stderr.count(f"{tmp_path / 'store' / 'opinion'}: ") == 2
    assert first.stdout == again.stdout == ""
    assert first.stderr.count(f"{tmp_path / 'run'}: ") == 1
    assert f"{tmp_path / 'run'}: " in again.stderr


def test_a_set_that_has_moved_is_found_in_the_store_and_another_is_not_taken_for_it(
    opinion_set: ExampleSet, tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_set.root, tmp_path / "old" / "opinion")
    train(tiny_config(root, tmp_path / "run", num_train_epochs=1), "")
    there = evaluate(config(tmp_path / "run"))
    (tmp_path / "new").mkdir()
    root.rename(tmp_path / "new" / "opinion")
    moved = EvaluateSettings.from_flags(run=tmp_path / "run", store=tmp_path / "new")
    assert evaluate(moved) == there
    rewritten(opinion_set, tmp_path / "old" / "opinion", lambda _, rows: rows[:20])
    assert evaluate(moved) == there
    record, content = tmp_path / "old" / "opinion" / FILE_NAME, (tmp_path / "old" / "opinion" / FILE_NAME).read_bytes()
    record.write_text("{")
    assert evaluate(moved) == there
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(IntegrityError, match=naming(record)):
        evaluate(moved)
    record.write_bytes(content)
    with pytest.raises(FingerprintMismatchError, match="old/opinion: "):
        evaluate(moved)
    assert evaluate(config(tmp_path / "run", tmp_path / "old" / "opinion"))["validation"]["gold"]


@pytest.mark.parametrize("is_finetuned", [True, False])
@pytest.mark.parametrize("command", [("evaluate",), ("predict", "a text"), ("serve",)])
def test_a_teachers_folder_is_refused_as_that_of_a_teacher(
    command: tuple[str, ...], is_finetuned: bool, teachers: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(teachers / "opinion", tmp_path / "teacher"))
    (folder / "finetune.json").unlink(missing_ok=True)
    if is_finetuned:
        (folder / "finetune.json").write_text("{}")
        (folder / "config.json").unlink()
    name, *texts = command
    result = invoke(name, folder, *texts)
    assert result.exit_code == 2
    assert all(part in result.stderr for part in (str(folder), "teacher, not a student", "teacher-dump"))
