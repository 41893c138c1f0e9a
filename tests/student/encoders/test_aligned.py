"""Aligned pairs against arithmetic written out, and one pair at a time."""

from collections.abc import Sequence
from math import sqrt, tanh
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch.nn import functional

from pipeline.errors import ConfigError
from pipeline.file_names import WEIGHTS_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.data import as_read, load_examples
from student.describe import describe_config
from student.encoders.aligned import PAIRS_AT_ONCE, AlignedEncoder
from student.encoders.specs import MOST_COMPARED
from student.evaluate import evaluate
from student.export.export import export
from student.lessons.examples import student_logits
from student.model.build_config import build_config, with_default_encoder
from student.model.disk_rounding import NUMBERS
from student.model.student import Student
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings, ExportSettings
from student.settings import TrainSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import aligned_student, assert_rows_train_as_whole_tables, padded, ragged

PAD = 0
ONES, OTHERS = [[3, 1, 4], [7], [2, 2, 9, 5, 3], []], [[6], [8, 2, 4, 1], [5, 5], [6, 8]]
SIZES = {"embedding": "aligned", "matrix_size": None, "vector_size": 5}
TOKENS = st.lists(st.integers(1, 9), max_size=6)


def encoder_of(**changes: object) -> AlignedEncoder:
    encoder = aligned_student(**changes).encoder
    assert isinstance(encoder, AlignedEncoder)
    # Biases and weights of LayerNorm start at 0 and 1, where mistakes would not show.
    for parameter in (*encoder.norm.parameters(), encoder.neighbours):
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return encoder


def side_alone(encoder: AlignedEncoder, own: Sequence[int], other: Sequence[int]) -> torch.Tensor:
    """The features of one sentence beside another, token by token."""
    size = encoder.norm.normalized_shape[0]
    norm = (encoder.norm.normalized_shape, encoder.norm.weight, encoder.norm.bias)
    x_LE, y_KE = (functional.layer_norm(encoder.vectors.trained.weight[list(ids)], *norm) for ids in (own, other))
    own_LE, other_KE = contextual(encoder, x_LE), contextual(encoder, y_KE)
    compared = []
    for x_E, own_E in zip(x_LE, own_LE, strict=True):
        seen_E = (torch.stack([x_E @ y_E for y_E in y_KE]) / sqrt(size)).softmax(0) @ other_KE if other else 0 * x_E
        both = torch.cat([own_E, seen_E, own_E * seen_E, (own_E - seen_E).abs()])
        compared.append((encoder.compare.weight @ both + encoder.compare.bias).clamp(min=0))
    if not compared:
        return encoder.compare.bias.new_zeros(2 * encoder.compare.out_features)
    return torch.cat([torch.stack(compared).sum(0), torch.stack(compared).amax(0)])


def contextual(encoder: AlignedEncoder, x_LE: torch.Tensor) -> torch.Tensor:
    """Tokens with parts of their neighbours, where there are any."""
    of_previous_E, of_next_E = encoder.neighbours
    vectors = []
    for number, x_E in enumerate(x_LE):
        previous_E = x_LE[number - 1] if number else 0 * x_E
        next_E = x_LE[number + 1] if number + 1 < len(x_LE) else 0 * x_E
        vectors.append(x_E + of_previous_E * previous_E + of_next_E * next_E)
    return torch.stack(vectors) if vectors else x_LE


def stored_names(run: Path) -> list[str]:
    with safe_open(run / WEIGHTS_FILE, framework="pt") as file:
        return list(file.keys())


def alone(encoder: AlignedEncoder, x: Sequence[int], y: Sequence[int]) -> torch.Tensor:
    return torch.cat([side_alone(encoder, x, y), side_alone(encoder, y, x)])


@torch.no_grad()
def test_two_tokens_by_hand() -> None:
    encoder = aligned_student(vector_size=4).encoder.double()
    assert isinstance(encoder, AlignedEncoder)
    encoder.norm.eps = 0
    encoder.vectors.trained.weight[3] = torch.tensor([2.0, 0.0, 2.0, 0.0])  # normalised: [1, -1, 1, -1]
    encoder.vectors.trained.weight[4] = torch.tensor([0.0, 6.0, 0.0, 6.0])  # normalised: [-1, 1, -1, 1]
    # The first output is the product of the first numbers, and the second one the distance of the second numbers.
    encoder.compare.weight.zero_()
    encoder.compare.bias.zero_()
    encoder.compare.weight[0, 8] = encoder.compare.weight[1, 13] = 1
    # The scores of token 3 are 4 / 2 and -4 / 2, so it is aligned with tanh(2) times itself.
    first = [tanh(2), 1 - tanh(2)]
    # Both tokens of the second sentence are aligned with the only one of the first: products 1 and -1, of which a ReLU
    # makes 0, and distances 0 and 2.
    expected_F = torch.tensor([*first, *first, 1, 2, 1, 2], dtype=torch.float64)
    torch.testing.assert_close(encoder.reduce_pairs(*ragged([[3], [3, 4]]))[0], expected_F)


def test_the_order_of_words_counts_only_through_neighbours() -> None:
    encoder, pairs = encoder_of(), ([[3, 1, 4], [5, 2]], [[4, 1, 3], [5, 2]])
    with torch.no_grad():
        one_F, other_F = (encoder.reduce_pairs(*ragged(pair))[0] for pair in pairs)
        assert not torch.allclose(one_F, other_F)
        encoder.neighbours.zero_()
        one_F, other_F = (encoder.reduce_pairs(*ragged(pair))[0] for pair in pairs)
    torch.testing.assert_close(one_F, other_F)


def test_each_pair_and_its_gradients_are_those_of_the_pair_alone() -> None:
    encoder = encoder_of().double()
    # More pairs than are computed at once, of different sizes.
    ones, others = [*ONES, *OTHERS, *ONES] * 4, [*OTHERS, *OTHERS, *ONES] * 4
    assert len(ones) > PAIRS_AT_ONCE
    weight_F = torch.linspace(-1, 2, encoder.size, dtype=torch.float64)
    encoder.reduce_pairs(*ragged([*ones, *others])).mv(weight_F).square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    encoder.zero_grad()
    expected_BF = torch.stack([alone(encoder, x, y) for x, y in zip(ones, others, strict=True)])
    expected_BF.mv(weight_F).square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(encoder.reduce_pairs(*ragged([*ones, *others])), expected_BF)
    assert len(gradients) == len(list(encoder.parameters()))
    for gradient, parameter in zip(gradients, encoder.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@settings(max_examples=30, deadline=None)
@given(pairs=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5), gaps=st.integers(0, 2))
def test_a_pair_does_not_depend_on_padding_or_on_its_batch(pairs: list[tuple[list[int], list[int]]], gaps: int) -> None:
    model = aligned_student()
    sides = [[[part for token in pair[k] for part in (*[PAD] * gaps, token)] for pair in pairs] for k in (0, 1)]
    with torch.no_grad():
        together_BC = model(*map(padded, sides))
        each_BC = [model.logits(*ragged(pair)) for pair in pairs]
    torch.testing.assert_close(together_BC, torch.cat(each_BC), rtol=1e-4, atol=1e-5)


@given(x=TOKENS, y=TOKENS)
@settings(max_examples=30, deadline=None)
def test_exchanged_sentences_exchange_their_features(x: list[int], y: list[int]) -> None:
    encoder = encoder_of()
    with torch.no_grad():
        xy_2X, yx_2X = (encoder.reduce_pairs(*ragged(pair))[0].chunk(2) for pair in ([x, y], [y, x]))
        alone_F = encoder.reduce(*ragged([x]))
        torch.testing.assert_close(alone_F, encoder.reduce_pairs(*ragged([x, x])))
    torch.testing.assert_close((xy_2X[0], xy_2X[1]), (yx_2X[1], yx_2X[0]))


def test_an_empty_sentence_has_no_features_and_no_share_in_the_other() -> None:
    encoder = encoder_of()
    features_BF = encoder.reduce_pairs(*ragged([[3, 1], [], [], [], [4], []]))
    assert features_BF.isfinite().all()
    pairs: list[tuple[list[int], list[int]]] = [([3, 1], []), ([], [4]), ([], [])]
    torch.testing.assert_close(features_BF, torch.stack([alone(encoder, x, y) for x, y in pairs]))
    assert not features_BF[2].any()
    features_BF.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_gradients_by_rows_move_it_as_those_of_whole_tables_do() -> None:
    batches: list[list[list[int]]] = [[*ONES, *OTHERS], [*ONES[:2], *OTHERS[:2]], [[], []], [[3], [PAD, 3]]]
    assert_rows_train_as_whole_tables(aligned_student, batches)


def test_a_trained_run_is_evaluated_and_predicts_what_it_computed(
    store: Path, roles_set: ExampleSet, tmp_path: Path
) -> None:
    # Weights are rounded by default, and scores are those of the rounded weights.
    record = train(tiny_config(store / "roles", tmp_path, **SIZES, weights=None), "")
    assert any(name.endswith(NUMBERS) for name in stored_names(tmp_path))
    assert evaluate(EvaluateSettings(run=tmp_path)) == record["result"]["evaluation"]
    model = Student.load(tmp_path)
    assert (model.config.embedding, model.config.pairing, model.config.head) == ("aligned", "attention", "mlp")
    expected_NC = student_logits(model, as_read(load_examples(roles_set, "validation"), model.config))
    rows = roles_set.read("validation", ("sentence1", "sentence2"))
    results = Predictor(tmp_path)(rows.column("sentence1").to_pylist(), rows.column("sentence2").to_pylist())
    actual_NC = np.array([[*result["probabilities"].values()] for result in results])
    np.testing.assert_allclose(actual_NC, softmax(expected_NC), atol=1e-6)
    assert len(np.unique(actual_NC.round(6))) > 20
    with pytest.raises(ConfigError, match=naming("--tables", "--embedding aligned", "--onnx")):
        export(ExportSettings(run=tmp_path, output_dir=tmp_path / "x", tables="int8"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"head": "bilstm"}, "--head bilstm"),
        ({"matrix_size": 3}, naming("--matrix-size: ", "--embedding")),
        ({"num_bigrams": 3}, naming("--num-bigrams: ", "--embedding")),
    ],
)
def test_flags_of_other_encoders_are_refused(flags: dict[str, object], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        build_config(TrainSettings.from_flags(embedding="aligned", **flags), facts("mrpc"))


def test_it_is_described_by_parts() -> None:
    description = describe_config(aligned_student().config)
    parts = {
        "vectors": 10 * 5,
        "neighbours": 10,
        "norm": 10,
        "compare": 20 * 3 + 3,
        "head": (12 * 6 + 6) + 2 * 6 + (6 * 3 + 3),
    }
    assert description["parameters"] == parts | {"total": sum(parts.values())}
    assert description["architecture"]["embedding"] == "Aligned pairs: vectors of 5"
    assert description["multiply_adds"] == {"per_token": 20 * 3 + 10, "per_input": 12 * 6 + 6 * 3}


@pytest.mark.parametrize(
    ("task", "flags", "expected"),
    [
        ("mrpc", {}, "aligned"),
        ("mrpc", {"head": "linear", "init": "noise"}, "aligned"),
        ("mrpc", {"embedding": "hybrid"}, "hybrid"),
        ("mrpc", {"vector_size": 100}, "aligned"),
        ("mrpc", {"matrix_size": 8}, "hybrid"),
        ("mrpc", {"pairing": "diffcat"}, "hybrid"),
        ("mrpc", {"head": "bilstm"}, "hybrid"),
        ("mrpc", {"init": Path("runs/words")}, "hybrid"),
        ("mrpc", {"layer_loss": "att-mse"}, "hybrid"),
        ("sst2", {}, "recurrent"),
        ("sst2", {"vector_size": 100, "init": "noise"}, "recurrent"),
        ("sst2", {"matrix_size": 8}, "hybrid"),
        ("sst2", {"head": "cnn"}, "hybrid"),
        ("sst2", {"layer_loss": "hid-cls"}, "hybrid"),
    ],
)
def test_pairs_are_aligned_and_texts_have_a_recurrence_unless_a_flag_needs_another(
    task: str, flags: dict[str, object], expected: str
) -> None:
    encoder = with_default_encoder(TrainSettings.from_flags(**flags), facts(task)).encoder
    assert (
        encoder.model_dump().items()
        >= {"embedding": expected, **{name: flags[name] for name in flags if name.endswith("_size")}}.items()
    )


def test_longer_texts_than_it_reads_have_another_default() -> None:
    of_documents = facts("mrpc") | {"max_seq_length": MOST_COMPARED + 1}
    assert with_default_encoder(TrainSettings.from_flags(), of_documents).encoder.embedding == "hybrid"


def test_a_run_of_pairs_without_flags_is_aligned(store: Path, tmp_path: Path) -> None:
    flags = {"set": str(store / "roles"), "store": store, "output_dir": tmp_path, "num_train_epochs": 1}
    record = train(TrainSettings.from_flags(**flags), "")
    assert (record["settings"]["embedding"], Student.load(tmp_path).config.embedding) == ("aligned", "aligned")
    # A student that starts from it has its encoder.
    flags |= {"init": tmp_path, "output_dir": tmp_path / "next"}
    assert train(TrainSettings.from_flags(**flags), "")["settings"]["embedding"] == "aligned"
