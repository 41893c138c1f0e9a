import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from student.encoders.matrices import MatrixEncoder
from student.encoders.specs import PoolingKind
from tests.helpers.toy_students import student_config

PAD, VOCABULARY, BERT_VOCABULARY = 0, 12, 30522
SENTENCES = st.lists(st.lists(st.integers(1, VOCABULARY - 1), max_size=9), min_size=1, max_size=6)

A, B, C = [[1.0, 2.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
ABC, CBA = [2.0, 7.0, 1.0, 3.0], [3.0, 7.0, 1.0, 2.0]  # A B C and C B A, multiplied by hand


def encoder(
    matrix_size: int,
    vector_size: int,
    bidirectional: bool,
    initializer_range: float = 0.3,
    pooling: PoolingKind = "sum",
) -> MatrixEncoder:
    torch.manual_seed(0)
    sizes = {"matrix_size": matrix_size, "vector_size": vector_size, "bidirectional": bidirectional}
    how = {"initializer_range": initializer_range} | ({"pooling": pooling} if vector_size else {})
    return MatrixEncoder(student_config(**sizes, **how, vocabulary_size=VOCABULARY)).double()


def padded(sentences: list[list[int]], extra: int = 0) -> torch.Tensor:
    width = max(1, *map(len, sentences), 0) + extra
    return torch.tensor([s + [PAD] * (width - len(s)) for s in sentences])


def set_rows(table: torch.nn.Embedding, *rows: object) -> None:
    with torch.no_grad():
        table.weight[1 : 1 + len(rows)] = torch.tensor(rows, dtype=table.weight.dtype).flatten(1)


@pytest.mark.parametrize("extra", [0, 1, 2, 5])
def test_concatenates_sum_and_forward_and_backward_product(extra: int) -> None:
    both = encoder(2, 2, bidirectional=True)
    vectors, forward, backward = both.tables()
    set_rows(vectors, [1.0, 10.0], [2.0, 20.0], [3.0, 30.0])
    set_rows(forward, A, B, C)
    set_rows(backward, A, B, C)
    assert both(padded([[1, 2, 3]], extra)).tolist() == [[6, 60, *ABC, *CBA]]


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_maxima_come_after_the_sum_and_pass_over_padding(extra: int) -> None:
    both = encoder(2, 2, bidirectional=True, pooling="sum+max")
    vectors, forward, backward = both.tables()
    set_rows(vectors, [1.0, -10.0], [2.0, -20.0], [-3.0, -30.0])
    set_rows(forward, A, B, C)
    set_rows(backward, A, B, C)
    ids_BL = padded([[1, 2, 3], []], extra)
    expected = [[0, -60, 2, -10, *ABC, *CBA], [0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1]]
    assert both(ids_BL).tolist() == both.exported(ids_BL, 16).tolist() == expected
    assert both(torch.tensor([[PAD, 1, PAD, 2, 3]])).tolist() == expected[:1]


def test_pooling_adds_no_parameters_and_widens_the_features() -> None:
    hybrids = [encoder(3, 4, bidirectional=True, pooling=pooling) for pooling in ("sum", "sum+max")]
    assert [hybrid.size for hybrid in hybrids] == [4 + 2 * 9, 2 * 4 + 2 * 9]
    assert len({hybrid.token_size for hybrid in hybrids}) == 1
    plain, other = (hybrid.state_dict() for hybrid in hybrids)
    assert plain.keys() == other.keys()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_directions_have_their_own_matrices() -> None:
    both = encoder(2, 0, bidirectional=True)
    forward, backward = both.tables()
    set_rows(forward, A, B)
    set_rows(backward, C, A)
    assert both(padded([[1, 2]])).tolist() == [[7, 2, 3, 1, 2, 1, 1, 0]]  # A B, then A C: token 2 comes first


def test_the_empty_sentence_is_neutral() -> None:
    assert encoder(2, 1, bidirectional=True)(padded([[]])).tolist() == [[0, 1, 0, 0, 1, 1, 0, 0, 1]]


def test_sums_ignore_order_and_products_do_not() -> None:
    ids = padded([[1, 2, 3], [3, 1, 2]])
    cbow_BF = encoder(0, 4, bidirectional=False)(ids)
    cmow_BF = encoder(2, 0, bidirectional=False)(ids)
    torch.testing.assert_close(cbow_BF[0], cbow_BF[1])
    assert not torch.allclose(cmow_BF[0], cmow_BF[1], atol=1e-3)


@given(
    sentences=SENTENCES,
    extra=st.integers(0, 9),
    seed=st.randoms(use_true_random=False),
    pooling=st.sampled_from(["sum", "sum+max"]),
)
def test_a_sentence_does_not_depend_on_padding_or_batch(
    sentences: list[list[int]], extra: int, seed: object, pooling: PoolingKind
) -> None:
    both = encoder(3, 4, bidirectional=True, pooling=pooling)
    alone = torch.cat([both(padded([sentence])) for sentence in sentences])
    order = list(range(len(sentences)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    together = both(padded([sentences[k] for k in order], extra))
    torch.testing.assert_close(together, alone[order], rtol=1e-9, atol=1e-9)


def test_float32_too_does_not_depend_on_padding() -> None:
    both = encoder(20, 400, bidirectional=True, initializer_range=0.01).float()
    sentences = [[1, 2, 3, 4, 5, 6, 7], [8], [], [11, 10, 9, 8]]
    alone = torch.cat([both(padded([sentence])) for sentence in sentences])
    torch.testing.assert_close(both(padded(sentences, extra=13)), alone, rtol=0, atol=1e-6)


def test_padding_stays_neutral_while_training() -> None:
    both = encoder(3, 4, bidirectional=True).float()
    optimizer = torch.optim.Adam(both.parameters(), lr=0.1)
    before = [table.weight.clone() for table in both.tables()]
    for _ in range(5):
        both(padded([[1, 2, 3], [4], []], extra=2)).square().sum().backward()
        optimizer.step()
    vectors, *matrices = both.tables()
    assert torch.equal(vectors.weight[PAD], torch.zeros(4))
    assert all(torch.equal(table.weight[PAD], torch.eye(3).flatten()) for table in matrices)
    assert all(
        (old[1:5] != table.weight[1:5]).any(dim=1).all() for old, table in zip(before, both.tables(), strict=True)
    )


def test_starts_near_the_identity() -> None:
    torch.manual_seed(0)
    vectors, forward, backward = MatrixEncoder(
        student_config(vocabulary_size=2000, matrix_size=20, vector_size=400, pad_id=7)
    ).tables()
    for table, center in ((vectors, torch.zeros(400)), *((t, torch.eye(20).flatten()) for t in (forward, backward))):
        noise = table.weight.detach() - center
        assert (noise[7] == 0).all()
        assert noise.mean().abs() < 1e-4
        assert noise.std().item() == pytest.approx(0.01, rel=0.01)
        assert noise.abs().max() < 0.07


@pytest.mark.parametrize(
    ("matrix_size", "vector_size", "bidirectional", "parameters", "features"),
    [
        (20, 400, True, 36_626_400, 1200),
        (20, 400, False, 24_417_600, 800),
        (28, 0, False, 23_929_248, 784),
        (0, 784, False, 23_929_248, 784),
    ],
)
def test_sizes_are_the_papers(
    matrix_size: int, vector_size: int, bidirectional: bool, parameters: int, features: int
) -> None:
    with torch.device("meta"):
        sizes = {"matrix_size": matrix_size, "vector_size": vector_size, "bidirectional": bidirectional}
        bert_sized = MatrixEncoder(student_config(**sizes, vocabulary_size=BERT_VOCABULARY))
    assert sum(p.numel() for p in bert_sized.parameters()) == parameters
    assert bert_sized.size == features
    assert encoder(matrix_size, vector_size, bidirectional)(padded([[1]])).shape == (1, features)
