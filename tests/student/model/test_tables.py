import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from pipeline.errors import IntegrityError
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.record_file import read_record
from student.encoders.matrices import MatrixEncoder, matrix_encoder
from student.export.export import with_small_tables
from student.model.student import Student, num_bytes, num_parameters
from student.model.tables import INT8_MAX, SmallDtype, SmallTable, put_side_by_side, trained_table
from tests.helpers.messages import naming
from tests.helpers.students import weights
from tests.helpers.toy_students import student

V, D = 7, 3
NEUTRAL = torch.eye(D).flatten()
DTYPES: list[SmallDtype] = ["float16", "int8"]


def filled(weight_VF: torch.Tensor, dtype: SmallDtype, neutral_F: torch.Tensor = NEUTRAL) -> SmallTable:
    table = SmallTable(neutral_F, len(weight_VF), dtype)
    table.fill(weight_VF)
    return table


@pytest.mark.parametrize("pad_id", [0, 4])
def test_a_new_table_is_neutral_at_the_padding_alone(pad_id: int) -> None:
    torch.manual_seed(0)
    noise_VF = trained_table(NEUTRAL, 400, pad_id, 0.1).weight.detach() - NEUTRAL
    assert torch.equal(noise_VF[pad_id], torch.zeros(D * D))
    others = torch.arange(400) != pad_id
    assert (noise_VF[others] != 0).all()
    assert noise_VF[others].std().item() == pytest.approx(0.1, rel=0.05)


@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=D * D, max_size=D * D), min_size=V, max_size=V))
def test_int8_is_off_by_half_a_step_of_its_row_at_most(rows: list[list[float]]) -> None:
    residual_VF = torch.tensor(rows)
    stored_VF = filled(residual_VF + NEUTRAL, "int8")(torch.arange(V)) - NEUTRAL
    step_V1 = (residual_VF + NEUTRAL - NEUTRAL).abs().amax(dim=1, keepdim=True) / INT8_MAX
    assert ((stored_VF - residual_VF).abs() <= step_V1 / 2 + 1e-4).all()


@given(exponents=st.lists(st.integers(-6, 6), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_large_row_costs_a_small_one_nothing(exponents: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale_V1 = 10.0 ** torch.tensor(exponents).unsqueeze(1)
    weight_VF = scale_V1 * torch.randn(len(exponents), 5, generator=generator)
    error_VF = filled(weight_VF, "int8", torch.zeros(5))(torch.arange(len(exponents))) - weight_VF
    largest_V1 = weight_VF.abs().amax(dim=1, keepdim=True)
    assert (error_VF.abs() <= largest_V1 * (0.5 / INT8_MAX + 1e-6)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_neutral_rows_stay_exactly_neutral(dtype: SmallDtype) -> None:
    weight_VF = NEUTRAL + torch.randn(V, D * D)
    weight_VF[2] = NEUTRAL
    assert torch.equal(filled(weight_VF, dtype)(torch.tensor([2])), NEUTRAL.unsqueeze(0))


def test_deviations_are_stored_more_exactly_than_matrices() -> None:
    torch.manual_seed(0)
    weight_VF = NEUTRAL + 0.01 * torch.randn(V, D * D)
    ours = (filled(weight_VF, "float16")(torch.arange(V)) - weight_VF).abs().max()
    assert ours < (weight_VF.half().float() - weight_VF).abs().max() / 10


@pytest.mark.parametrize("shape", [(), (1,), (2, 5), (0, 3)])
def test_rows_are_looked_up_for_ids_of_any_shape(shape: tuple[int, ...]) -> None:
    weight_VF = torch.randint(-INT8_MAX, INT8_MAX + 1, (V, D * D)).float()
    weight_VF[:, 0] = INT8_MAX  # a step of exactly 1
    ids = torch.randint(V, shape)
    assert torch.equal(filled(weight_VF, "int8", torch.zeros(D * D))(ids), weight_VF[ids])


@pytest.mark.parametrize(("dtype", "bytes_per_number"), [("float16", 2), ("int8", 1)])
def test_a_small_students_bytes_by_hand(dtype: SmallDtype, bytes_per_number: int) -> None:
    whole = student()
    small = with_small_tables(whole, dtype)
    tables = whole.encoder.tables()
    numbers = sum(table.weight.numel() for table in tables)
    scales = 4 * sum(table.num_embeddings for table in tables)
    index = 4 * tables[0].num_embeddings
    assert num_bytes(small) == num_bytes(whole.head) + bytes_per_number * numbers + scales + index
    assert num_parameters(small) == num_parameters(whole)
    assert small.encoder.tables() == []


@pytest.mark.parametrize("pad_id", [0, 6, 10])
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_tables_leave_out_neutral_rows_and_say_the_same(dtype: SmallDtype, pad_id: int) -> None:
    whole = student(pad_id=pad_id, initializer_range=0.3)
    whole.encoder.neutralise(torch.tensor([token in (0, 2, 3, 9) for token in range(whole.config.num_tokens)]))
    used = sorted({1, 4, 5, 6, 7, 8, pad_id})
    assert whole.encoder.used_ids().tolist() == used
    small = with_small_tables(whole, dtype)
    small_encoder = matrix_encoder(small.encoder)
    assert small_encoder.rows is not None
    assert small_encoder.rows.token_R.tolist() == used
    assert small.config.used_rows == len(used)
    assert [len(part.table.weight) for part in small_encoder.parts()] == 3 * [len(used)]
    neutral, nothing = (small.encoder(torch.tensor([ids])) for ids in ([9, 2, 3], [pad_id]))
    assert torch.equal(neutral, nothing)
    ids = torch.tensor([[1, 2, 4], [8, 9, 5]])
    torch.testing.assert_close(small.encoder(ids), whole.encoder(ids), rtol=0, atol=0.05)
    assert torch.equal(small.encoder(ids), small.encoder(torch.tensor([[1, 4], [8, 5]])))


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ([0, 5, 10], "token 10"),
        ([-1, 0, 5], "token -1"),
        ([0, 5, 5], "tokens"),
        ([0, 5, 3], "tokens"),
        ([1, 3, 5], "token 0"),
    ],
)
def test_rows_that_are_for_no_token_are_refused(tokens: list[int], match: str, tmp_path: Path) -> None:
    small = student(table_dtype="int8", used_rows=3)
    small_encoder = matrix_encoder(small.encoder)
    assert small_encoder.rows is not None
    small_encoder.rows.token_R.copy_(torch.tensor(tokens))
    small.save(tmp_path)
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", match)):
        Student.load(tmp_path)


@pytest.mark.parametrize("token", [10, -1])
def test_a_token_beyond_the_vocabulary_is_no_neutral_one(token: int) -> None:
    small = student(table_dtype="float16", used_rows=3)
    with pytest.raises(IndexError):
        small(torch.tensor([[1, token]]))


def test_more_rows_than_tokens_are_refused(tmp_path: Path) -> None:
    student(table_dtype="int8").save(tmp_path)
    config = read_record(tmp_path / CONFIG_FILE)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | {"used_rows": 11}))
    with pytest.raises(IntegrityError, match=naming("config.json: ", "used_rows is 11", "10")):
        Student.load(tmp_path)


def test_tables_of_every_token_without_an_index_are_refused(tmp_path: Path) -> None:
    student(table_dtype="int8").save(tmp_path)
    kept = {name: tensor for name, tensor in weights(tmp_path).items() if name != "encoder.rows.token_R"}
    save_file(kept, tmp_path / WEIGHTS_FILE)
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", "encoder.rows.token_R")):
        Student.load(tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_neutral_for_a_small_student(dtype: SmallDtype) -> None:
    torch.manual_seed(0)
    small = with_small_tables(student(), dtype)
    assert isinstance(small.encoder, MatrixEncoder)
    pad, ids = small.config.pad_id, torch.tensor([[3, 4, 5]])
    padded = torch.cat([ids, torch.full((1, 4), pad)], dim=1)
    torch.testing.assert_close(small.encoder(padded), small.encoder(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", ["linear", "mlp", "cnn", "bilstm"])
def test_a_small_student_differs_by_its_rounded_tables_alone(head: str, dtype: SmallDtype) -> None:
    pooling = "sum" if head == "bilstm" else "sum+max"
    sizes = {"matrix_size": 4, "vector_size": 16, "pooling": pooling}
    whole = student(head=head, is_pair=True, initializer_range=0.3, **sizes)
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    small = with_small_tables(whole, dtype)
    assert all(torch.equal(tensor, before[name]) for name, tensor in whole.state_dict().items())
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[6, 7], [8, 0]])
    rounding = (small(*ids) - whole(*ids)).abs().max().item()
    assert rounding > 0
    with torch.no_grad():
        for part, small_part in zip(
            matrix_encoder(whole.encoder).parts(), matrix_encoder(small.encoder).parts(), strict=True
        ):
            assert isinstance(part.table, torch.nn.Embedding)
            part.table.weight.copy_(small_part.table(torch.arange(part.table.num_embeddings)))
    assert (small(*ids) - whole(*ids)).abs().max().item() < rounding / 3


def test_tables_side_by_side_are_the_same_and_share_memory() -> None:
    tables = [torch.randn(V, width) for width in (3, 5)]
    before = [table.clone() for table in tables]
    put_side_by_side(tables)
    assert all(torch.equal(table, was) for table, was in zip(tables, before, strict=True))
    assert [table.stride() for table in tables] == [(8, 1), (8, 1)]
    assert tables[1].data_ptr() - tables[0].data_ptr() == 3 * tables[0].element_size()
