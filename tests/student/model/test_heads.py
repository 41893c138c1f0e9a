import copy
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.errors import ConfigError
from student.encoders.specs import EmbeddingKind
from student.model.architecture import StudentConfig
from student.model.build_config import build_config
from student.model.heads import HEADS as KINDS_OF_HEAD
from student.model.heads import (
    MIN_CNN_SIDE,
    PAIRINGS,
    BiLstmHead,
    cnn_head,
    hidden_layer,
    is_as_large,
    is_equal,
    linear_head,
    logits_of_heads,
    mlp_head,
    share_hidden_layers,
)
from student.model.student import ENCODERS, Student
from student.settings import HeadKind, PairingKind, TrainSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import padded, student, student_config

CLASSES = 3  # of student_config
HEADS = ("linear", "mlp", "cnn", "bilstm")
TOKENS = st.lists(st.integers(1, 9), max_size=7)


def squares(**changes: object) -> Student:
    """A student with a CNN: vectors and both products as squares of 4 x 4."""
    return student(head="cnn", matrix_size=4, vector_size=16, **changes)


def layers(model: Student) -> nn.Sequential:
    assert isinstance(model.head, nn.Sequential)
    return model.head


def set_weights(layer: nn.Module, weight: object, bias: object) -> None:
    layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("matrix_size", "vector_size"), [(4, 16), (5, 0), (0, 25)])
def test_every_head_takes_every_embedding(head: str, matrix_size: int, vector_size: int) -> None:
    model = student(head=head, matrix_size=matrix_size, vector_size=vector_size)
    assert model(padded([[1, 2], [3], [], [4, 5, 6]])).shape == (4, CLASSES)


@pytest.mark.parametrize("head", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize(("matrix_size", "vector_size"), [(4, 16), (0, 25)])
def test_heads_take_maxima_beside_sums(head: str, matrix_size: int, vector_size: int) -> None:
    plain, model = (
        student(head=head, matrix_size=matrix_size, vector_size=vector_size, pooling=pooling)
        for pooling in ("sum", "sum+max")
    )
    assert model.num_features == plain.num_features + vector_size
    assert model(padded([[1, 2], [3], [], [4, 5, 6]])).shape == (4, CLASSES)


@pytest.mark.parametrize("head", HEADS)
def test_nothing_comes_after_the_last_layer(head: str) -> None:
    model, ids = student(head=head, matrix_size=4, vector_size=16), padded([[k, k + 1] for k in range(1, 9)])
    logits = model(ids)
    last = [layer for layer in model.head.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.neg_()
        last.bias.neg_()
    assert torch.equal(model(ids), -logits)
    assert (logits != 0).all()


def test_linear_by_hand() -> None:
    head = linear_head(2, 2)
    set_weights(head[1], [[1.0, 2.0], [-3.0, 1.0]], [0.0, -10.0])
    logits = head(torch.tensor([[1.0, 3.0], [8.0, 2.0]]))  # normalised: [-1, 1] and [1, -1]
    torch.testing.assert_close(logits, torch.tensor([[1.0, -6.0], [-1.0, -14.0]]), rtol=0, atol=1e-4)


def test_mlp_by_hand() -> None:
    head = mlp_head(2, 2, 1)
    set_weights(head[0], [[1.0, 1.0], [1.0, -1.0]], [0.0, 1.0])
    set_weights(head[3], [[2.0, -3.0]], [0.5])
    logits = head(torch.tensor([[3.0, 9.0], [1.0, 0.0], [-1.0, 4.0]]))
    # before the ReLU [12, -5], [1, 2], [3, -4]; normalised [1, -1], [-1, 1], [1, -1]
    torch.testing.assert_close(logits, torch.tensor([[5.5], [-4.5], [5.5]]), rtol=0, atol=1e-3)


@given(side=st.integers(MIN_CNN_SIDE, 12), channels=st.integers(1, 4))
def test_cnn_fits_every_side(side: int, channels: int) -> None:
    head = cnn_head(channels * side**2, side, CLASSES).eval()
    assert head(torch.randn(2, channels * side**2)).shape == (2, CLASSES)


def test_cnn_channels_are_the_representations_parts_in_order() -> None:
    model = squares()
    ids = padded([[1, 2]])
    vectors, forward, backward = (table.weight.view(-1, 4, 4) for table in model.encoder.tables())
    channels = layers(model)[0](model.encoder(ids))[0]
    expected = [vectors[1] + vectors[2], forward[1] @ forward[2], backward[2] @ backward[1]]
    torch.testing.assert_close(channels, torch.stack(expected), rtol=0, atol=1e-6)


def test_channels_of_pairs_are_both_and_their_differences() -> None:
    u, w = torch.randn(2, 3 * 16)
    channels = layers(squares(is_pair=True))[0](torch.cat([u, w, (u - w).abs()])[None])[0]
    expected = [part.view(3, 4, 4) for part in (u, w, (u - w).abs())]
    assert torch.equal(channels, torch.cat(expected))


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_part_reaches_the_logits_through_its_own_channel(silent: int) -> None:
    model, ids = squares(), padded([[1, 2]])
    with torch.no_grad():
        layers(model)[1].get_parameter("weight")[silent] = 0
    for part, table in enumerate(model.encoder.tables()):
        before = model(ids)
        with torch.no_grad():
            table.weight[1] += torch.linspace(1, 2, 16)
        assert torch.equal(model(ids), before) == (part == silent)


def test_the_cnn_first_blows_every_number_up_to_a_block() -> None:
    head = cnn_head(2 * 9, 3, CLASSES)
    mix = torch.tensor([[1.0, 0.0], [10.0, 1.0]])  # channel 0 is x0 + 10 x1, channel 1 is x1
    set_weights(head[1], mix[:, :, None, None].expand(2, 2, 4, 4).tolist(), [0.0, -1.0])
    x = torch.randn(2, 3, 3)
    blocks = [torch.kron(square, torch.ones(4, 4)).relu() for square in (x[0] + 10 * x[1], x[1] - 1)]
    torch.testing.assert_close(head[:3](x.flatten()[None])[0], torch.stack(blocks))


def test_the_smallest_squares_can_be_trained_on_a_single_row() -> None:
    model = student(head="cnn", matrix_size=MIN_CNN_SIDE, vector_size=0).train()
    model(padded([[1, 2]])).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_trained_cnn_keeps_the_statistics_of_its_batches(store: Path, tmp_path: Path) -> None:
    sizes = {"matrix_size": 4, "vector_size": 16, "hidden_size": None}
    record = train(tiny_config(store / "opinion", tmp_path, head="cnn", **sizes), "")
    kept = weights(tmp_path)
    steps = -(-record["settings"]["rows"] // 32) * record["result"]["best"]["epoch"]
    assert kept["head.6.num_batches_tracked"].item() == steps > 0
    assert (kept["head.6.running_mean"] != 0).all()


def config_of(**flags: object) -> StudentConfig:
    known = ("task", "target", "metrics", "is_pair", "vocabulary_size", "pad_id", "tokenizer_sha256", "max_seq_length")
    facts = {name: getattr(student_config(), name) for name in known} | {"special_ids": None}
    return build_config(TrainSettings.from_flags(**flags), facts)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"matrix_size": 4, "vector_size": 5}, naming("cnn", "4 x 4", "5")),
        ({"embedding": "cbow", "vector_size": 26}, naming("cnn", "5 x 5", "26")),
        ({"embedding": "cmow", "matrix_size": 2}, naming("cnn", MIN_CNN_SIDE, "2")),
        ({"embedding": "cbow", "vector_size": 1}, naming("cnn", MIN_CNN_SIDE, "1")),
        ({"hidden_size": 7}, naming("--hidden-size: ", "--head cnn")),
    ],
)
def test_what_the_cnn_cannot_lay_out_is_refused(flags: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        config_of(head="cnn", **flags)


def test_the_vectors_of_a_hybrid_follow_the_side_of_its_cnn() -> None:
    sizes = [config_of(head="cnn", **flags).vector_size for flags in ({}, {"matrix_size": 7}, {"embedding": "cbow"})]
    assert sizes == [400, 49, 784]
    assert config_of(matrix_size=7).vector_size == 400


def test_default_widths_are_the_papers() -> None:
    assert [config_of(head=head).hidden_size for head in HEADS] == [None, 128, None, None]
    assert config_of(head="bilstm", hidden_size=7).hidden_size == 7
    wide, narrow = (Student(student_config(head="bilstm", hidden_size=size)).head for size in (None, 7))
    assert isinstance(wide, BiLstmHead)
    assert isinstance(narrow, BiLstmHead)
    assert (wide.hidden_size, narrow.hidden_size) == (2 * (4 + 9), 7)  # the sequence's own width, both ways


def lstm_by_hand(x_LF: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """The last hidden state of one direction."""
    to_gates, from_state, bias, other_bias = weights
    hidden = cell = torch.zeros(from_state.shape[1], dtype=x_LF.dtype)
    for x in x_LF:
        i, f, g, o = (to_gates @ x + from_state @ hidden + bias + other_bias).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
    return hidden


def test_bilstm_by_hand() -> None:
    torch.manual_seed(0)
    head = BiLstmHead(4, 3, CLASSES).double().eval()
    x_LF = torch.randn(5, 4, dtype=torch.float64)
    forward, backward = (list(head.lstm.parameters())[k : k + 4] for k in (0, 4))
    last = torch.cat([lstm_by_hand(x_LF, *forward), lstm_by_hand(x_LF.flip(0), *backward)])
    _, hidden_layer, _, output_layer = head.classifier
    expected = output_layer(hidden_layer(last.relu()))
    torch.testing.assert_close(head(x_LF[None], torch.tensor([5]))[0], expected)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5), extra=st.integers(0, 5))
def test_bilstm_reads_neither_padding_nor_other_rows(lengths: list[int], extra: int) -> None:
    torch.manual_seed(0)
    head = BiLstmHead(4, 3, CLASSES).double().eval()
    rows = [torch.randn(length, 4, dtype=torch.float64) for length in lengths]
    alone = torch.cat([head(row[None], torch.tensor([len(row)])) for row in rows])
    together = torch.full((len(rows), max(lengths) + extra, 4), 99.0, dtype=torch.float64)
    for place, row in zip(together, rows, strict=True):
        place[: len(row)] = row
    torch.testing.assert_close(head(together, torch.tensor(lengths)), alone, rtol=1e-9, atol=1e-9)


def test_order_matters_to_the_bilstm_even_over_sums() -> None:
    model = student(head="bilstm", matrix_size=0, vector_size=4, initializer_range=1.0)
    one, other = model(padded([[1, 2, 3], [3, 2, 1]]))
    assert not np.allclose(one.detach(), other.detach(), atol=1e-3)


def test_a_pairs_bilstm_reads_the_longer_sentence() -> None:
    seen = []
    model = student(head="bilstm", is_pair=True)
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1].tolist()))
    model(padded([[1, 2, 3], [1], [], [4]]), padded([[5], [6, 7], [], [4, 4, 4, 4]]))
    assert seen == [[3, 2, 1, 4]]


@pytest.mark.parametrize(
    ("kinds", "table"), [(HeadKind, KINDS_OF_HEAD), (PairingKind, PAIRINGS), (EmbeddingKind, ENCODERS)]
)
def test_every_choice_of_a_flag_is_in_its_table(kinds: object, table: dict[str, object]) -> None:
    assert list(get_args(kinds)) == list(table)


def test_heads_that_share_a_layer_have_the_logits_of_each_alone() -> None:
    torch.manual_seed(0)
    heads = [mlp_head(6, 5, 2), linear_head(6, 3), mlp_head(6, 5, 1), mlp_head(6, 4, 2)]
    share_hidden_layers(heads, is_as_large)
    assert [hidden_layer(head) is hidden_layer(heads[0]) for head in heads] == [True, False, True, False]
    features_BF = torch.randn(7, 6)
    expected_BC = torch.cat([head(features_BF) for head in heads], dim=1)
    torch.testing.assert_close(logits_of_heads(heads, features_BF), expected_BC)


def test_only_equal_layers_are_shared_by_finished_students() -> None:
    one, other = mlp_head(6, 5, 2), mlp_head(6, 5, 2)
    copied = copy.deepcopy(one)
    share_hidden_layers([one, other, copied], is_equal)
    assert hidden_layer(copied) is hidden_layer(one) is not hidden_layer(other)
