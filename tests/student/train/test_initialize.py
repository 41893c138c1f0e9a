import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.record_file import write_record
from student.initial_weights.run import copy_embeddings, source_sha256
from student.model.student import Student
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import student, student_config

STILL = 1e-30  # a learning rate that moves nothing


def test_tables_are_copied_exactly_and_the_head_is_not(tmp_path: Path) -> None:
    student(is_pair=True, head="linear").save(tmp_path)  # another task, another head
    torch.manual_seed(1)
    other = Student(student_config())
    head = {name: tensor.clone() for name, tensor in other.head.state_dict().items()}
    copy_embeddings(tmp_path, other.encoder)
    for name, tensor in weights(tmp_path).items():
        assert name.startswith("head.") or torch.equal(other.state_dict()[name], tensor)
    assert len(other.encoder.tables()) == 3
    assert all(torch.equal(other.head.state_dict()[name], tensor) for name, tensor in head.items())


def test_the_copy_can_be_trained_and_the_source_stays(tmp_path: Path) -> None:
    student().save(tmp_path)
    before, other = weights(tmp_path), Student(student_config())
    copy_embeddings(tmp_path, other.encoder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert all(parameter.requires_grad for parameter in other.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(tmp_path).items())


def test_a_run_starts_from_the_tables_of_another(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    started, plain = tmp_path / "started", tmp_path / "plain"
    for folder, source in ((started, opinion_run), (plain, None)):
        train(tiny_config(store / "roles", folder, init=source, learning_rate=STILL, pairing="compare"), "")
    source_weights, started_weights, plain_weights = map(weights, (opinion_run, started, plain))
    tables = [name for name in source_weights if name.startswith("encoder.") and "bigrams" not in name]
    assert len(tables) == 3
    for name in tables:
        torch.testing.assert_close(started_weights[name], source_weights[name], rtol=0, atol=1e-20)
        assert not torch.allclose(plain_weights[name], source_weights[name], atol=1e-3)
    for name in started_weights.keys() - set(tables) - {"encoder.bigrams.table.weight"}:  # the head is the seed's
        torch.testing.assert_close(started_weights[name], plain_weights[name], rtol=0, atol=1e-20)


def test_unused_tokens_keep_what_they_started_from(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "roles", tmp_path, init=opinion_run, learning_rate=0.1), "")
    before, after = (weights(run)["encoder.vectors.table.weight"] for run in (opinion_run, tmp_path))
    same = (before == after).all(dim=1)
    assert same.any()
    assert not same.all()


def test_every_difference_is_named(tmp_path: Path) -> None:
    student(tokenizer_sha256="1" * 64, table_dtype="int8").save(tmp_path)
    here = student(matrix_size=2, vector_size=5, bidirectional=False)
    with pytest.raises(ConfigError, match=naming(f"--init {tmp_path}: ")) as caught:
        source_sha256(tmp_path, here.config)
    for difference in (
        f"tokenizer_sha256 is '{'1' * 64}'",
        "matrix_size is 3",
        "vector_size is 4",
        "bidirectional is True",
        "table_dtype is 'int8'",
    ):
        assert difference in str(caught.value)


def test_a_run_of_another_pooling_is_a_source(tmp_path: Path) -> None:
    student(pooling="sum").save(tmp_path)
    other = student(pooling="sum+max")
    assert source_sha256(tmp_path, other.config) == hashlib.sha256((tmp_path / WEIGHTS_FILE).read_bytes()).hexdigest()
    copy_embeddings(tmp_path, other.encoder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"matrix_size": 2}, "matrix_size"),
        ({"vector_size": 0}, "vector_size"),
        ({"bidirectional": False}, "bidir"),
    ],
)
def test_one_difference_is_enough(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    student().save(tmp_path)
    with pytest.raises(ConfigError, match=naming(f"--init {tmp_path}: ", named)):
        source_sha256(tmp_path, student(**changes).config)


def test_a_run_does_not_start_from_tables_that_do_not_fit(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("2 problems", "matrix_size is 3", "vector_size is 5")):
        train(tiny_config(store / "roles", tmp_path, init=opinion_run, matrix_size=4, vector_size=6), "")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_weights_is_refused(store: Path, tmp_path: Path) -> None:
    begun = {"state": "running", "command": "distill train-student", "settings": {}}
    (tmp_path / "begun").mkdir()
    write_record(tmp_path / "begun" / "run.json", begun)
    for missing, named in (
        (tmp_path / "gone", ()),
        (tmp_path, ("model.safetensors",)),
        (tmp_path / "begun", ("\n  distill train-student",)),
    ):
        with pytest.raises(ConfigError, match=naming(f"--init {missing}: ", *named)):
            train(tiny_config(store / "opinion", tmp_path / "run", init=missing), "")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_damaged_source_is_refused(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    source = shutil.copytree(opinion_run, tmp_path / "source")
    (source / CONFIG_FILE).unlink()
    with pytest.raises(IntegrityError, match=naming("source: ", "config.json")):
        train(tiny_config(store / "opinion", tmp_path / "run", init=source), "")


def test_the_record_names_the_source_by_its_content(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path, init=opinion_run), "")
    expected = hashlib.sha256((opinion_run / WEIGHTS_FILE).read_bytes()).hexdigest()
    assert record["settings"]["init_from_sha256"] == expected
    assert str(opinion_run) not in json.dumps(record["settings"])
    assert json.loads((opinion_run / "run.json").read_text())["settings"]["init_from_sha256"] is None


def test_a_run_resumes_from_the_same_source_wherever_it_lies(
    store: Path, opinion_run: Path, roles_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    record = train(tiny_config(store / "opinion", run, init=opinion_run), "")
    moved = shutil.copytree(opinion_run, tmp_path / "moved")
    assert train(tiny_config(store / "opinion", run, init=moved), "")["result"] == record["result"]
    for other in (roles_run, None):
        with pytest.raises(FingerprintMismatchError, match="init_from_sha256: "):
            train(tiny_config(store / "opinion", run, init=other), "")
    shutil.copy(roles_run / WEIGHTS_FILE, moved)  # the same place, other weights
    with pytest.raises(FingerprintMismatchError, match="init_from_sha256: "):
        train(tiny_config(store / "opinion", run, init=moved), "")
