from pathlib import Path

import pytest

from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import CONFIG_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target
from student.describe import describe, describe_config
from student.model.student import Student
from tests.helpers.messages import naming
from tests.helpers.students import weights
from tests.helpers.toy_students import student, student_config

# Students of 10 tokens and 3 classes; unless changed vectors of 4, matrices of 3 x 3 both ways, and an MLP 6 wide.
VECTORS, MATRICES = 10 * 4, 10 * 9
BILSTM_WEIGHTS = 2 * (4 * 5 * 26 + 4 * 5 * 5)  # both directions, 5 wide; a token has 26 numbers, 13 each way
CNN = {"head": "cnn", "matrix_size": 4, "vector_size": 0, "bidirectional": False}  # 4 -> 16 -> 13 -> 6 -> 2


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({}, (22 * 6 + 6) + 2 * 6 + (6 * 3 + 3)),
        ({"is_pair": True}, (66 * 6 + 6) + 2 * 6 + (6 * 3 + 3)),
        ({"is_pair": True, "pairing": "compare"}, (88 * 6 + 6) + 2 * 6 + (6 * 3 + 3)),
        ({"head": "linear"}, 2 * 22 + (22 * 3 + 3)),
        ({"head": "bilstm", "hidden_size": 5}, BILSTM_WEIGHTS + 2 * 8 * 5 + (10 * 5 + 5) + (5 * 3 + 3)),
    ],
)
def test_parameters_by_part(changes: dict[str, object], head: int) -> None:
    parts = {"vectors": VECTORS, "forward_matrices": MATRICES, "backward_matrices": MATRICES, "head": head}
    description = describe_config(student_config(**changes))
    assert description["parameters"] == parts | {"total": sum(parts.values())}
    assert description["bytes"] == 4 * sum(parts.values())


def test_only_the_parts_that_there_are() -> None:
    cbow = describe_config(student_config(matrix_size=0, head="linear"))
    assert cbow["parameters"] == {"vectors": VECTORS, "head": 2 * 4 + 4 * 3 + 3, "total": VECTORS + 23}
    assert cbow["multiply_adds"] == {"per_token": 0, "per_input": 4 * 3}


def test_parameters_and_bytes_of_a_cnn() -> None:
    cnn = describe_config(student_config(**CNN))
    head = 2 * (16 + 1) + (9 * 3 + 3) + (9 * 3 * 3 + 3) + 2 * 3 + (2 * 2 * 3 * 3 + 3)
    assert cnn["parameters"] == {"forward_matrices": 160, "head": head, "total": 160 + head}
    assert cnn["bytes"] == 4 * (160 + head) + 4 * 2 * 3 + 8  # means, variances and a counter are stored, not learned


def test_smaller_tables_have_as_many_parameters_in_fewer_bytes() -> None:
    whole, half, small = (
        describe_config(student_config(table_dtype=dtype)) for dtype in ("float32", "float16", "int8")
    )
    assert half["parameters"] == small["parameters"] == whole["parameters"]
    head, scales, index = 4 * whole["parameters"]["head"], 3 * 4 * 10, 4 * 10
    assert small["bytes"] == VECTORS + 2 * MATRICES + scales + index + head
    assert whole["bytes"] > half["bytes"] > small["bytes"]


@pytest.mark.parametrize(
    ("changes", "per_token", "per_input"),
    [
        ({}, 2 * 27, 22 * 6 + 6 * 3),
        ({"bidirectional": False}, 27, 13 * 6 + 6 * 3),
        ({"is_pair": True}, 2 * 27, 66 * 6 + 6 * 3),
        ({"head": "linear"}, 2 * 27, 22 * 3),
        ({"head": "bilstm", "hidden_size": 5}, 2 * 27 + BILSTM_WEIGHTS, 10 * 5 + 5 * 3),
        (CNN, 64, 16 * 16 + 13 * 13 * 16 + 6 * 6 * 9 * 3 + 2 * 2 * 9 * 3 * 3 + 12 * 3),
    ],
)
def test_multiply_adds_by_hand(changes: dict[str, object], per_token: int, per_input: int) -> None:
    description = describe_config(student_config(**changes))
    assert description["multiply_adds"] == {"per_token": per_token, "per_input": per_input}


def test_a_padding_past_the_vocabulary_has_a_row_too() -> None:
    assert describe_config(student_config(pad_id=10))["parameters"]["vectors"] == VECTORS + 4


@pytest.mark.parametrize("table_dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("head", ["linear", "mlp", "cnn", "bilstm"])
def test_the_bytes_are_those_of_the_file(tmp_path: Path, head: str, table_dtype: str) -> None:
    student(head=head, table_dtype=table_dtype, matrix_size=4, vector_size=16).save(tmp_path)
    assert describe(str(tmp_path))["bytes"] == sum(tensor.nbytes for tensor in weights(tmp_path).values())


def test_small_tables_of_some_tokens_are_counted_as_such() -> None:
    some = describe_config(student_config(table_dtype="int8", used_rows=4))
    head = some["parameters"]["head"]
    assert some["parameters"]["total"] == 4 * (4 + 9 + 9) + head
    assert some["bytes"] == 4 * (4 + 9 + 9) + 3 * 4 * 4 + 4 * 4 + 4 * head
    assert some["architecture"]["tokens"] == "4 of 10 tokens known, the others neutral"


def test_a_trained_run(opinion_run: Path, opinion_set: ExampleSet) -> None:
    rows = opinion_set.record.tokenizer.vocabulary_size
    description = describe(str(opinion_run))
    pairs = Student.load(opinion_run).config.encoder.model_dump()["num_bigrams"]
    head = (60 * 8 + 8) + 2 * 8 + (8 * 2 + 2)  # maxima of 5 and sums of pairs, 32 wide, among the features
    assert description["parameters"]["total"] == rows * (5 + 9 + 9) + pairs * 32 + head
    assert description["architecture"]["task"] == "opinion"


def test_a_recipe_and_its_run_are_described_alike(tmp_path: Path) -> None:
    recipe, run = tmp_path / "own.yaml", tmp_path / "run"
    recipe.write_text(
        "{task: rte, matrix_size: 3, vector_size: 4, hidden_size: 6, pooling: sum, num_bigrams: 0, alpha: 0.1,"
        " weights: float32}"
    )
    target = Target(kind="classes", names=("same", "other"))
    sizes = {"vocabulary_size": 30522, "is_pair": True, "pairing": "compare"}
    run.mkdir()
    Student(student_config(task="rte", target=target, **sizes)).save(run)
    assert describe(str(recipe)) == describe(str(run))
    assert describe(str(recipe))["parameters"]["vectors"] == 30522 * 4


@pytest.mark.parametrize(
    ("recipe", "logits", "total"),
    [("rte", "2", 40_231_402), ("sst2", "2", 23_933_460), ("stsb", "21", 50_234_517 - 30522 * 784)],
)
def test_shipped_recipes_have_the_papers_sizes(recipe: str, logits: str, total: int) -> None:
    description = describe(recipe)
    assert description["architecture"]["logits"] == logits
    assert description["parameters"]["total"] == total


def test_the_architecture_is_told_in_words_and_sizes() -> None:
    words = describe_config(student_config(is_pair=True))["architecture"]
    assert {"task": "toy", "logits": "3", "head": "MLP, 6 wide"}.items() <= words.items()
    assert "vectors of 4 and products of 3 x 3 matrices, both ways" in words["embedding"]
    assert "DiffCat" in words["pairs"]
    assert "pairs" not in describe_config(student_config())["architecture"]


def test_what_is_neither_run_nor_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ", "config.json")):
        describe(str(tmp_path))
    with pytest.raises(ConfigError, match=naming("--recipe: ", "'rtee'", "'rte'")):
        describe("rtee")
    student().save(tmp_path)
    with pytest.raises(ConfigError, match=naming("--recipe", "model.safetensors: ")):
        describe(str(tmp_path / "model.safetensors"))


def test_a_recipe_without_a_task_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("head: linear")
    with pytest.raises(ConfigError, match=naming("own.yaml: ", "task")):
        describe(str(recipe))


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text("{")
    with pytest.raises(IntegrityError, match=r"config\.json: "):
        describe(str(tmp_path))
