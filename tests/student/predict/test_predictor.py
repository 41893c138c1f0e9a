import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, DistillError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from pipeline.text.text_to_ids import TextReader
from student.data import load_examples
from student.lessons.examples import student_logits
from student.model.student import Student
from student.predict.predictor import Predictor
from student.predict.torch_backend import TorchBackend
from student.settings import TrainSettings
from tests.benchmarks.random_student import made_up_tokenizer, write_random_student
from tests.helpers.messages import naming


def texts(logit_set: ExampleSet, column: str) -> list[str]:
    values: list[str] = logit_set.read("validation", (column,)).column(column).to_pylist()
    return values


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_text_gives_the_same_as_the_stored_ids(name: str, request: pytest.FixtureRequest) -> None:
    run, logit_set = request.getfixturevalue(f"{name}_run"), request.getfixturevalue(f"{name}_set")
    second = texts(logit_set, "sentence2") if name == "roles" else None
    results = Predictor(run)(texts(logit_set, "sentence1"), second)
    expected_NC = softmax(student_logits(Student.load(run), load_examples(logit_set, "validation")))
    names = logit_set.record.target.names
    actual_NC = np.array([[result["probabilities"][label] for label in names] for result in results])
    np.testing.assert_allclose(actual_NC, expected_NC, atol=1e-6)
    np.testing.assert_allclose(actual_NC.sum(axis=1), 1, atol=1e-6)
    assert [result["label"] for result in results] == [names[k] for k in expected_NC.argmax(axis=1)]
    assert len(np.unique(actual_NC.round(6))) > 20


def test_logits_are_the_numbers_behind_the_answers(opinion_run: Path) -> None:
    predictor = Predictor(opinion_run)
    sentences = ["the food was dull .", "the wine was perfect .", "the food was 不 [MASK] ."] * 100
    logits_NC = predictor.logits(sentences)
    assert logits_NC.shape == (300, 2)
    assert logits_NC.dtype == np.float32
    results = predictor(sentences)
    actual_NC = np.array([[*result["probabilities"].values()] for result in results])
    np.testing.assert_allclose(actual_NC, softmax(logits_NC), atol=1e-6)
    names = predictor.student.config.target.names
    assert [result["label"] for result in results] == [names[k] for k in logits_NC.argmax(axis=1)]
    assert predictor.logits([]).shape == (0, 2)


def test_sentences_alone_have_the_answers_of_many(roles_run: Path) -> None:
    predictor = Predictor(roles_run)
    texts = [f"{name} paid ben ." for name in ("anna", "clara", "ben", "emma")] * 18
    for count in (63, 64, 65):
        pairs = texts[:count], texts[count - 62 : 2 * count - 62]
        alone_NC = np.concatenate([predictor.logits([a], [b]) for a, b in zip(*pairs, strict=True)])
        np.testing.assert_allclose(alone_NC, predictor.logits(*pairs), atol=1e-5)
    assert predictor.logits([], []).shape == (0, len(predictor.student.config.target.names))


def test_vectors_are_what_the_encoder_makes_of_each_sentence_alone(roles_run: Path) -> None:
    predictor = Predictor(roles_run)
    encoder, reader = predictor.student.encoder, predictor.reader
    sentences = ["anna paid ben .", "", "ben paid anna ."]
    vectors_NF = predictor.encode(sentences)
    assert vectors_NF.dtype == np.float32
    for vector_F, sentence in zip(vectors_NF, sentences, strict=True):
        ids = [reader.tokenizer.encode(sentence, add_special_tokens=False).ids or [predictor.student.config.pad_id]]
        np.testing.assert_allclose(vector_F, encoder(torch.tensor(ids)).detach().numpy()[0], atol=1e-5)
    assert not np.allclose(vectors_NF[0], vectors_NF[2], atol=1e-3)  # another order, another product
    with pytest.raises(ConfigError, match="string"):
        predictor.encode("anna")


def test_without_compiled_code_the_answers_are_the_same(opinion_run: Path) -> None:
    backend, other = TorchBackend(opinion_run), TorchBackend(opinion_run)
    backend.served = other.served = None  # the engine has a tokenizer of its own
    other.reader = TextReader(other.tokenizer, None)
    sentences = ["the food was dull .", "The wine wasn't 不 [MASK] ."]
    np.testing.assert_array_equal(other.logits(sentences, None), backend.logits(sentences, None))


def test_long_text_is_cut_as_the_teachers_was(opinion_run: Path) -> None:
    words = ["the food was lovely ."] * 6  # 30 tokens and two special ones
    predictor = Predictor(opinion_run)
    assert predictor.student.config.max_seq_length == 32
    exact, longer, shorter = (" ".join(words[:k]) for k in (6, 7, 5))
    results = predictor([exact, longer + " dull", shorter])
    probabilities = [[*result["probabilities"].values()] for result in (*results, *predictor([exact + " awful"]))]
    np.testing.assert_allclose(probabilities[1], probabilities[0], atol=1e-6)
    np.testing.assert_allclose(probabilities[3], probabilities[0], atol=1e-6)
    assert abs(probabilities[2][0] - probabilities[0][0]) > 1e-5


def test_case_and_spaces_do_not_matter_to_an_uncased_tokenizer(opinion_run: Path) -> None:
    plain, other = Predictor(opinion_run)(["the food was lovely .", "  The FOOD   was lovely."])
    assert plain == other


def test_unknown_words_and_empty_text_have_answers(opinion_run: Path) -> None:
    results = Predictor(opinion_run)(["xylophone", "quux \U0001f600", "", "\n"])
    assert all(np.isfinite([*result["probabilities"].values()]).all() for result in results)
    assert results[2] == results[3]


def test_no_text_gives_no_answer(opinion_run: Path, roles_run: Path) -> None:
    assert Predictor(opinion_run)([]) == []
    assert Predictor(roles_run)([], []) == []


def test_many_texts_do_not_depend_on_each_other(roles_run: Path) -> None:
    predictor, pair = Predictor(roles_run), ("anna paid ben .", "ben was paid by anna .")
    (alone,) = predictor([pair[0]], [pair[1]])
    many = predictor([pair[0], "felix"] * 300, [pair[1], "clara blamed emma . " * 3] * 300)
    assert len(many) == 600
    for result in many[::2]:
        assert result["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)
    assert many[1]["probabilities"] != pytest.approx(alone["probabilities"], abs=1e-6)


def test_what_is_no_text_is_told(opinion_run: Path) -> None:
    with pytest.raises(DataError, match=naming("sentence 1", "None")):
        Predictor(opinion_run)(["a", None])
    with pytest.raises(ConfigError, match="table"):
        Predictor(opinion_run)(pa.table({"text": ["a"]}))


def test_pairs_and_single_sentences_are_not_mixed_up(opinion_run: Path, roles_run: Path) -> None:
    with pytest.raises(ConfigError, match="'opinion'"):
        Predictor(opinion_run)(["a"], ["b"])
    with pytest.raises(ConfigError, match="'roles'"):
        Predictor(roles_run)(["a"])
    with pytest.raises(ConfigError, match=naming("2 first sentences", "1 second")):
        Predictor(roles_run)(["a", "b"], ["c"])


def test_another_tokenizer_beside_the_weights_is_refused(opinion_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    text = (run / "tokenizer.json").read_text()
    (run / "tokenizer.json").write_text(text.replace('"awful"', '"lovely_"').replace('"lovely"', '"awful"'))
    with pytest.raises(DistillError, match=naming("run/tokenizer.json: ")):
        Predictor(run)


def test_a_folder_without_a_student_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ", "config.json")):
        Predictor(tmp_path)


def predict(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_takes_pairs_by_twos(roles_run: Path) -> None:
    sentences = ["anna paid ben .", "ben paid anna .", "felix helped emma .", "emma was helped by felix ."]
    code, out, _ = predict(roles_run, *sentences, "--json")
    assert code == 0
    assert json.loads(out) == Predictor(roles_run)(sentences[0::2], sentences[1::2])


def test_the_command_reads_lines_and_tables(opinion_run: Path, roles_run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the food was dull .\nthe wine was perfect .\n")
    _, out, _ = predict(opinion_run, "--file", tmp_path / "lines.txt", "--json")
    assert json.loads(out) == Predictor(opinion_run)(["the food was dull .", "the wine was perfect ."])
    (tmp_path / "pairs.jsonl").write_text('{"sentence2": "ben paid anna .", "sentence1": "anna paid ben ."}\n')
    _, out, _ = predict(roles_run, "--file", tmp_path / "pairs.jsonl", "--json")
    assert json.loads(out) == Predictor(roles_run)(["anna paid ben ."], ["ben paid anna ."])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--file"),
        (["one", "--file", "other.txt"], "--file"),
        (["one", "two", "three"], "texts: "),
        (["--file", "lines.txt"], "lines.txt: "),
    ],
)
def test_misuse_of_the_command_is_told_in_one_line(roles_run: Path, arguments: list[str], message: str) -> None:
    code, out, err = predict(roles_run, *arguments)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err


def test_of_many_labels_the_three_best_are_shown(tmp_path: Path) -> None:
    labels = tuple(f"intent-{k}" for k in range(17))
    flags = TrainSettings.from_flags(matrix_size=3, vector_size=5)
    write_random_student(tmp_path, made_up_tokenizer(100), flags, labels)
    _, out, _ = predict(tmp_path, "one", "two")
    probabilities = Predictor(tmp_path)(["one"])[0]["probabilities"]
    best = sorted(labels, key=lambda label: -probabilities[label])
    for label in best[:3]:
        assert f"{label} {probabilities[label]:.2f}" in " ".join(out.replace("│", " ").split())
    assert f"{best[3]} " not in out
    assert max(map(len, out.splitlines())) <= 80
