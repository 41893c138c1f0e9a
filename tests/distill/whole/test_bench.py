import importlib.util
import json
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import Result

from distill.apps.bench.readers import MEASURES, OF_IDS
from pipeline.devices import has_fast_bf16
from student.model.student import load_student
from tests.helpers.commands import invoke


def run(*arguments: object) -> Result:
    return invoke("bench", *arguments)


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find(name))


@pytest.mark.parametrize("student", ["opinion_run", "roles_run"])
def test_every_reader_has_a_speed_for_every_measure_and_place(
    student: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, picture = request.getfixturevalue(student), tmp_path / "speed.svg"
    before = torch.get_num_threads()
    result = run("--student", folder, "--peer", "tinybert-4", "--seconds", 0.2, "--output", picture, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["student"] == str(folder)
    assert told["machine"].keys() == {"processor", "gpu", "torch"}
    precisions = ["fp32", "bf16"] if has_fast_bf16() else ["fp32"]
    readers = [(folder.name, "fp32"), *(("TinyBERT-4", precision) for precision in precisions)]
    cpu = [speed for speed in told["speeds"] if speed["device"] == "cpu"]
    threads = {speed["threads"] for speed in cpu}
    assert threads == {1, before}
    assert {(s["measure"], s["threads"], s["model"], s["precision"]) for s in cpu} == {
        (measure, count, *reader) for measure, count, reader in product(MEASURES, threads, readers)
    }
    assert len(cpu) == len(MEASURES) * len(threads) * len(readers)
    assert all(speed["sentences_per_second"] > 0 and 1 <= speed["rows"] <= 256 for speed in cpu)
    for speed in cpu:
        is_of_ids = speed["measure"] in OF_IDS
        assert (speed["tokens_per_second"] is None) == (speed["megabytes_per_second"] is None) == is_of_ids
    of_documents = [speed for speed in cpu if speed["measure"] == "documents"]
    for speed in of_documents:
        num_texts = 2 if student == "roles_run" else 1
        assert speed["megabytes_per_second"] == pytest.approx(speed["sentences_per_second"] * num_texts * 3601 / 1e6)
        limit = load_student(folder).config.max_seq_length  # shorter than a document
        assert speed["tokens_per_second"] == pytest.approx(speed["sentences_per_second"] * limit)
    texts = [node.text for node in ElementTree.parse(picture).iter() if node.text]  # noqa: S314  # we wrote it
    assert set(MEASURES.values()) <= set(texts)
    assert {f"{name} {precision}" for name, precision in readers} <= set(texts)


def test_people_get_a_table_for_each_measure(opinion_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "model2vec", "nanotoken", "fasttext", "transformers")
    result = run("--student", opinion_run, "--seconds", 0.05)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("1 core") == len(MEASURES)
    assert result.stdout.count("1 x") == len(MEASURES)
    for peer in ("bert-base", "distilbert", "tinybert-4"):
        assert f"{peer}: " in result.stderr
    for package in ("model2vec", "nanotoken", "fasttext-numpy2"):
        assert f"pip install {package}" in result.stderr


def test_students_are_peers_of_each_other(opinion_run: Path, roles_run: Path) -> None:
    result = run("--student", opinion_run, "--peer", opinion_run, "--seconds", 0.05, "--json")
    assert result.exit_code == 0, result.stderr
    models = {(speed["model"], speed["num_parameters"]) for speed in json.loads(result.stdout)["speeds"]}
    assert {model for model, _ in models} == {opinion_run.name, str(opinion_run)}
    assert len({parameters for _, parameters in models}) == 1
    result = run("--student", opinion_run, "--peer", roles_run, "--peer", opinion_run)
    assert result.exit_code == 2
    assert f"--peer: {roles_run}: " in result.stderr


def test_wrong_flags_are_told_at_once(tmp_path: Path) -> None:
    result = run("--peer", "bert-bas", "--seconds", 0, "--output", tmp_path / "x.pdf")
    assert result.exit_code == 2
    assert "3 problems" in result.stderr
    assert "'bert-bas'. Did you mean 'bert-base'?" in result.stderr
    assert "x.pdf: " in result.stderr


def test_what_is_no_student_is_told_first(tmp_path: Path) -> None:
    result = run("--student", tmp_path / "none")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path / 'none'}: ")


@pytest.mark.parametrize(
    ("flags", "missing", "message"),
    [
        (["--peer", "model2vec"], "model2vec", "pip install model2vec"),
        (["--peer", "fasttext"], "fasttext", "pip install fasttext-numpy2"),
        (["--peer", "bert-base"], "transformers", "transformers"),
        (["--output", "x.svg"], "matplotlib", "matplotlib"),
    ],
)
def test_what_was_asked_for_and_is_not_installed_is_an_error(
    flags: list[str], missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, missing)
    result = run(*flags)
    assert result.exit_code == 2
    assert message in result.stderr
