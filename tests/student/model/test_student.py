import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import IntegrityError
from pipeline.file_names import CONFIG_FILE, RUN_RECORD, WEIGHTS_FILE
from pipeline.record_file import read_record, write_record
from pipeline.tasks.target import Target
from pipeline.training.run_record import STUDENTS
from student.model.heads import diff_cat
from student.model.student import Student
from tests.helpers.messages import naming
from tests.helpers.toy_students import padded, student, student_config


def test_diff_cat() -> None:
    u, w = torch.tensor([[1.0, 5.0], [0.0, 0.0]]), torch.tensor([[4.0, 3.0], [-1.0, 0.0]])
    assert diff_cat(u, w).tolist() == [[1, 5, 4, 3, 3, 2], [0, 0, -1, 0, 1, 0]]


@pytest.mark.parametrize(("classes", "total"), [(2, 40_231_402), (3, 40_232_403), (21, 40_250_421)])
def test_default_student_has_the_papers_size(classes: int, total: int) -> None:
    names = tuple(map(str, range(classes)))
    sizes = {"vocabulary_size": 30522, "matrix_size": 20, "vector_size": 400, "hidden_size": 1000}
    with torch.device("meta"):
        paper = Student(student_config(target=Target(kind="classes", names=names), is_pair=True, **sizes))
    head = 3600 * 1000 + 1000 + 2000 + 1000 * classes + classes
    assert sum(p.numel() for p in paper.head.parameters()) == head
    assert sum(p.numel() for p in paper.parameters()) == 36_626_400 + head == total


def test_pairs_are_compared_by_diff_cat() -> None:
    pairs = student(is_pair=True)
    ids1, ids2 = padded([[1, 2, 3]]), padded([[4]])
    expected = pairs.head(diff_cat(pairs.encoder(ids1), pairs.encoder(ids2)))
    torch.testing.assert_close(pairs(ids1, ids2), expected)


TOKENS = st.lists(st.integers(1, 9), max_size=7)


@given(pairs=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5))
def test_a_pair_does_not_depend_on_its_batch(pairs: list[tuple[list[int], list[int]]]) -> None:
    model = student(is_pair=True)
    alone = torch.cat([model(padded([one]), padded([other])) for one, other in pairs])
    together = model(padded([one for one, _ in pairs]), padded([other for _, other in pairs]))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_logits_may_be_negative() -> None:
    logits = student()(padded([[k, k + 1] for k in range(1, 9)]))
    assert logits.min() < 0 < logits.max()


def test_dropout_works_in_training_only() -> None:
    model, ids = student(), padded([[1, 2]])
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_padding_may_lie_past_the_vocabulary() -> None:
    model = student(vocabulary_size=10, pad_id=10)
    torch.testing.assert_close(model(padded([[9, 1], [9]], pad_id=10))[1:], model(torch.tensor([[9]])))


@pytest.mark.parametrize(("matrix_size", "vector_size"), [(3, 4), (3, 0), (0, 4)])
def test_round_trip_keeps_every_bit(tmp_path: Path, matrix_size: int, vector_size: int) -> None:
    saved = student(matrix_size=matrix_size, vector_size=vector_size)
    saved.save(tmp_path)
    loaded = Student.load(tmp_path)
    assert loaded.config == saved.config
    assert not loaded.training
    assert loaded.state_dict().keys() == saved.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in saved.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    student().save(tmp_path)
    return tmp_path


def test_cut_weights_are_refused(folder: Path) -> None:
    data = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(data[:-9])
    with pytest.raises(IntegrityError, match=r"model\.safetensors: "):
        Student.load(folder)


def test_missing_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(IntegrityError, match=r"model\.safetensors: "):
        Student.load(folder)


def test_weights_of_another_student_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    student(hidden_size=7).save(other)
    (other / WEIGHTS_FILE).replace(folder / WEIGHTS_FILE)
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", "head.0.weight")):
        Student.load(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format_version": 2}, "version 2"),
        ({"encoder": {"embedding": "cbow", "matrix_size": 3}}, "matrix_size"),
        ({"encoder": {"embedding": "hybrid", "vector_size": 0}}, "vector_size: "),
        ({"encoder": {"embedding": "cmow", "pooling": "sum+max"}}, "pooling"),
        ({"head": "bilstm", "encoder": {"embedding": "cbow", "pooling": "sum+max"}}, "bilstm"),
        ({"pad_id": -1}, "pad_id: .*-1"),
        ({"hidden_dropout": 2.0}, "hidden_dropout: .*2"),
        ({"hiden_size": 3}, naming("'hiden_size'", "'hidden_size'")),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder: Path, change: dict[str, object], match: str) -> None:
    config = read_record(folder / CONFIG_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(config | change))
    with pytest.raises(IntegrityError, match=match):
        Student.load(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_damaged_config_is_refused(folder: Path, text: str) -> None:
    (folder / CONFIG_FILE).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(IntegrityError, match=naming(folder / CONFIG_FILE)):
        Student.load(folder)


def test_a_folder_without_a_student_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ", "config.json")):
        Student.load(tmp_path)


def test_a_run_that_has_kept_nothing_yet_says_how_it_goes_on(tmp_path: Path) -> None:
    record = {"state": "running", "command": "distill train-student", "settings": {}}
    write_record(tmp_path / RUN_RECORD, record)
    with pytest.raises(IntegrityError, match=r"\n  distill train-student$"):
        Student.load(tmp_path)
    write_record(tmp_path / RUN_RECORD, record | {STUDENTS: ["opinion"]})
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ", "distill train-student")):
        Student.load(tmp_path)
