"""Weights rounded for the disk: what they become, that this happens once only, and files that are damaged."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from student.evaluate import evaluate
from student.model.build_config import build_config
from student.model.disk_rounding import (
    HEAD_STEP,
    MATRIX_STEP,
    NUMBERS,
    ROWS,
    SHAPE,
    STEPS,
    VECTOR_STEP,
    rounded,
    widened,
)
from student.model.student import Student
from student.model.weights import read_weights
from student.run_settings import EvaluateSettings
from student.train import train
from student.training_data import task_facts
from tests.helpers.flags import parsed
from tests.helpers.joint_runs import tasks_config
from tests.helpers.numpy_student import weights_of
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import student

VECTORS, MATRICES, HEAD = "encoder.vectors.table.weight", "encoder.forward_matrices.table.weight", "head.0.weight"
MANY = 10**6


def back(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return widened(rounded(tensors), MANY)


@pytest.mark.parametrize(
    ("name", "fineness"),
    [
        (VECTORS, VECTOR_STEP),
        ("encoder.vectors.trained.weight", VECTOR_STEP),
        (MATRICES, MATRIX_STEP),
        (HEAD, HEAD_STEP),
    ],
)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_each_number_is_off_by_half_a_step_at_most(name: str, fineness: float, spread: float) -> None:
    weight = torch.randn(50, 16, generator=torch.Generator().manual_seed(1)) * spread
    neutral = torch.eye(4).flatten() if name == MATRICES else torch.zeros(16)
    typical = weight.square().mean(dim=1, keepdim=True).sqrt()
    step = torch.maximum(fineness * typical, 2 * weight.abs().amax(dim=1, keepdim=True) / 127)
    off = (back({name: weight + neutral})[name] - weight - neutral).abs()
    assert bool((off <= step / 2 + 1e-6).all())
    assert bool((off > 0).any())


def test_neutral_rows_are_exact_and_not_stored() -> None:
    tables = {VECTORS: torch.zeros(5, 3), MATRICES: torch.eye(2).flatten().repeat(5, 1)}
    tables[VECTORS][2] = torch.tensor([8.0, -8.0, 1.0])
    parts = rounded(tables)
    assert parts[VECTORS + ROWS].tolist() == [2]
    assert parts[MATRICES + ROWS].tolist() == []
    assert all(torch.equal(tensor, tables[name]) for name, tensor in widened(parts, MANY).items())


def test_other_tensors_stay_as_they_are() -> None:
    others = {"head.0.bias": torch.randn(3), "encoder.bigrams.pairs_K2": torch.ones(4, 2, dtype=torch.int32)}
    assert rounded(others) == others
    assert widened(others, MANY) == others


@pytest.mark.parametrize("name", [VECTORS, MATRICES, HEAD])
def test_rounding_again_changes_no_byte(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(3000, 16, generator=generator) * torch.logspace(-5, 2, 3000).unsqueeze(1)
    once = rounded({name: weight})
    again = rounded(widened(once, MANY))
    assert once.keys() == again.keys()
    assert all(torch.equal(tensor, again[part]) for part, tensor in once.items())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_so(wrong: float) -> None:
    weight = torch.ones(3, 4)
    weight[1, 2] = wrong
    assert back({VECTORS: weight})[VECTORS].isfinite().all(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("value", [0.0, 1e-45, 3e38])
def test_numbers_of_any_size(value: float) -> None:
    found = back({VECTORS: torch.full((2, 3), value)})[VECTORS]
    torch.testing.assert_close(found, torch.full((2, 3), value), rtol=0.01, atol=1e-37)


@pytest.mark.parametrize(
    ("part", "content", "words"),
    [
        (SHAPE, torch.tensor([2**21, 2**21]), "too many for the size of its file"),
        (SHAPE, torch.tensor([-1, 3]), "too many for the size of its file"),
        (ROWS, torch.tensor([1, 0]), "do not ascend"),
        (ROWS, torch.tensor([0, 9]), "do not ascend"),
        (ROWS, torch.tensor([-1, 0]), "do not ascend"),
        (STEPS, torch.ones(7), "7 steps"),
        (SHAPE, torch.tensor([5, 4]), "does not have the 8 numbers"),
        (NUMBERS, torch.zeros(9, dtype=torch.uint8), "damaged"),
        (NUMBERS, rounded({VECTORS: torch.ones(200, 3)})[VECTORS + NUMBERS], "does not have the 6 numbers"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part: str, content: Tensor, words: str) -> None:
    parts = rounded({VECTORS: torch.ones(2, 3)})
    with pytest.raises(ValueError, match=words):
        widened(parts | {VECTORS + part: content}, MANY)


def test_a_rounded_student_answers_alike_and_is_saved_again_as_it_is(tmp_path: Path) -> None:
    made = student()
    made.config = made.config.model_copy(update={"weights": "rounded"})
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
    made.save(tmp_path / "one")
    loaded = Student.load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    name = "model.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    ids = torch.arange(1, 7).reshape(2, 3)
    assert not torch.equal(loaded(ids), made.eval()(ids))
    assert {name: tensor.shape for name, tensor in loaded.state_dict().items()} == {
        name: tensor.shape for name, tensor in made.state_dict().items()
    }


@pytest.fixture(scope="module")
def rounded_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `opinion_run`, with rounded weights."""
    folder = tmp_path_factory.mktemp("rounded_run")
    train(tiny_config(store / "opinion", folder, weights=None), "distill train-student --task opinion")
    return folder


def test_a_run_is_rounded_unless_float32_is_wanted(opinion_run: Path, rounded_run: Path) -> None:
    exact, small = Student.load(opinion_run), Student.load(rounded_run)
    assert (exact.config.weights, small.config.weights) == ("float32", "rounded")
    assert torch.equal(small.state_dict()[VECTORS], back(exact.state_dict())[VECTORS])


def test_its_recorded_scores_are_those_of_the_rounded_weights(rounded_run: Path) -> None:
    recorded = read_work_record(rounded_run / "run.json")["result"]["evaluation"]
    evaluated = evaluate(EvaluateSettings(run=rounded_run))
    assert evaluated["validation"]["gold"] == recorded["validation"]["gold"]
    assert evaluated["validation"]["fidelity"] == pytest.approx(recorded["validation"]["fidelity"])


def test_another_student_starts_from_it(rounded_run: Path, store: Path, tmp_path: Path) -> None:
    settings = tiny_config(store / "opinion", tmp_path, init=rounded_run, learning_rate=1e-9, num_train_epochs=1)
    train(settings, "distill train-student --task opinion")
    before, after = read_weights(rounded_run), read_weights(tmp_path)
    torch.testing.assert_close(after[VECTORS], before[VECTORS], rtol=0, atol=1e-6)


def test_tasks_that_share_an_encoder_share_its_rounded_form(store: Path, tmp_path: Path) -> None:
    sets = [store / "opinion", store / "roles"]
    train(tasks_config(sets, tmp_path, weights=None), "distill train-student --tasks opinion roles")
    one, other = (read_weights(tmp_path / path.name) for path in sets)
    assert torch.equal(one[VECTORS], other[VECTORS])
    assert torch.equal(back({VECTORS: one[VECTORS]})[VECTORS], one[VECTORS])


def test_numpy_alone_reads_it(rounded_run: Path) -> None:
    found = weights_of(rounded_run)
    assert all((found[name] == tensor.numpy()).all() for name, tensor in read_weights(rounded_run).items())


@pytest.mark.parametrize("embedding", ["lstm", "biattentive"])
def test_weights_of_other_encoders_are_float32(embedding: str, opinion_set: ExampleSet) -> None:
    flags = ["--task", "opinion", "--embedding", embedding]
    facts = task_facts(opinion_set)
    assert build_config(parsed(flags), facts).weights == "float32"
    with pytest.raises(ConfigError, match="--weights rounded"):
        build_config(parsed([*flags, "--weights", "rounded"]), facts)
