"""Students with an element-wise recurrence against one token at a time, and from flags to predictions."""

from math import tanh
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pipeline.errors import ConfigError
from pipeline.file_names import STUDENT_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.data import as_read, load_examples
from student.describe import describe_config
from student.encoders.recurrent import RecurrentEncoder
from student.evaluate import evaluate
from student.export.export import export
from student.lessons.examples import student_logits
from student.model.build_config import build_config, build_token_label_config
from student.model.student import Student
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings, ExportSettings
from student.settings import TrainSettings
from student.train import train
from tests.helpers.engine import ROWS, by_torch, made, needs_engine, write
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import (
    aligned_student,
    assert_rows_train_as_whole_tables,
    padded,
    ragged,
    recurrent_student,
    student_config,
)

PAD = 0
SIZES = {"embedding": "recurrent", "matrix_size": None, "vector_size": 5}
TOKENS = st.lists(st.integers(1, 9), max_size=6)


def encoder_of(**changes: object) -> RecurrentEncoder:
    encoder = recurrent_student(**changes).encoder
    assert isinstance(encoder, RecurrentEncoder)
    # Biases and weights of LayerNorm start at 0 and 1, where mistakes would not show.
    for parameter in (*encoder.norm.parameters(), *encoder.gate.parameters(), *encoder.value.parameters()):
        torch.nn.init.uniform_(parameter, -1.5, 1.5)
    return encoder


def alone(encoder: RecurrentEncoder, ids: list[int]) -> torch.Tensor:
    """The features of one sentence, token by token."""
    v_LE, size = encoder.vectors.trained.weight[ids], encoder.state_size
    parts = [v_LE.sum(dim=0), v_LE.amax(dim=0) if ids else v_LE.sum(dim=0)]
    x_LE = functional.layer_norm(v_LE, encoder.norm.normalized_shape, encoder.norm.weight, encoder.norm.bias)
    for begin, tokens_LE in ((0, x_LE), (size, x_LE.flip(0))):
        rows = slice(begin, begin + size)
        states = [v_LE.new_zeros(size)]
        for x_E in tokens_LE:
            gate_H = torch.tanh(encoder.gate.weight[rows] @ x_E + encoder.gate.bias[rows])
            states.append(gate_H * states[-1] + encoder.value.weight[rows] @ x_E + encoder.value.bias[rows])
        read = torch.stack(states[1:] or states)
        parts += [states[-1], read.amax(dim=0), read.amin(dim=0)]
    return torch.cat(parts)


@torch.no_grad()
def test_two_tokens_by_hand() -> None:
    encoder = recurrent_student(vector_size=2).encoder.double()
    assert isinstance(encoder, RecurrentEncoder)
    encoder.norm.eps = 0
    encoder.vectors.trained.weight[3] = torch.tensor([4.0, 2.0])  # normalised: [1, -1]
    encoder.vectors.trained.weight[4] = torch.tensor([1.0, 5.0])  # normalised: [-1, 1]
    for layer in (encoder.gate, encoder.value):
        layer.weight.zero_()
        layer.bias.zero_()
    # Both ways have states of one number. Its gate is tanh(-x), and its value 2 x, by the first number x.
    encoder.gate.weight[:, 0], encoder.value.weight[:, 0] = -1, 2
    there, back = tanh(1) * 2 - 2, tanh(-1) * -2 + 2
    states = [there, 2, there, back, back, -2]
    expected_F = torch.tensor([5, 7, 4, 5, *states], dtype=torch.float64)
    torch.testing.assert_close(encoder.reduce(*ragged([[3, 4]]))[0], expected_F)


@settings(max_examples=40, deadline=None)
@given(sentences=st.lists(TOKENS, min_size=1, max_size=5), gaps=st.integers(0, 2))
def test_a_sentence_does_not_depend_on_padding_or_on_its_batch(sentences: list[list[int]], gaps: int) -> None:
    encoder = encoder_of().double()
    with torch.no_grad():
        expected_NF = torch.stack([alone(encoder, ids) for ids in sentences])
        torch.testing.assert_close(encoder.reduce(*ragged(sentences)), expected_NF)
        spread = [[part for token in ids for part in (*[PAD] * gaps, token)] for ids in sentences]
        ids_NL = padded(spread)
        torch.testing.assert_close(encoder(ids_NL), expected_NF)
        if ids_NL.shape[1]:
            torch.testing.assert_close(encoder.exported(ids_NL, 20), expected_NF)


def test_the_order_of_words_counts() -> None:
    encoder = encoder_of()
    with torch.no_grad():
        one_F, other_F = encoder.reduce(*ragged([[3, 1, 4], [4, 1, 3]]))
    sums = slice(2 * encoder.vectors.size)
    torch.testing.assert_close(one_F[sums], other_F[sums])
    assert not torch.allclose(one_F, other_F)


def test_gradients_by_rows_move_it_as_those_of_whole_tables_do() -> None:
    batches: list[list[list[int]]] = [[[3, 1, 4], [2]], [[7, 7], []], [[], []], [[1, PAD, 9, 2]]]
    assert_rows_train_as_whole_tables(recurrent_student, batches)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"matrix_size": 20}, ["--matrix-size"]),
        ({"num_bigrams": 100}, ["--num-bigrams"]),
        ({"window_size": 10}, ["--window-size"]),
        ({"pooling": "sum"}, ["--pooling"]),
    ],
)
def test_flags_of_other_encoders_are_refused(flags: dict[str, object], names: list[str]) -> None:
    with pytest.raises(ConfigError, match=naming(*names)):
        TrainSettings.from_flags(embedding="recurrent", **flags)


def test_heads_that_read_tokens_or_squares_are_refused() -> None:
    for head in ("cnn", "bilstm"):
        with pytest.raises(ConfigError, match=naming(f"--head {head}", "recurrent")):
            build_config(TrainSettings.from_flags(embedding="recurrent", head=head), facts("sst2"))


def test_its_description_names_it() -> None:
    config = build_config(TrainSettings.from_flags(embedding="recurrent"), facts("sst2"))
    assert (config.vector_size, config.matrix_size, config.weights) == (400, 0, "rounded")
    assert "recurrence" in describe_config(config)["architecture"]["embedding"]


def test_a_trained_run_is_evaluated_and_predicts_what_it_computed(
    store: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    # Weights are rounded by default, and scores are those of the rounded weights.
    record = train(tiny_config(store / "opinion", tmp_path, **SIZES, weights=None), "")
    assert evaluate(EvaluateSettings(run=tmp_path)) == record["result"]["evaluation"]
    assert (tmp_path / STUDENT_FILE).is_file()
    model = Student.load(tmp_path)
    assert (model.config.embedding, model.config.weights) == ("recurrent", "rounded")
    expected_NC = student_logits(model, as_read(load_examples(opinion_set, "validation"), model.config))
    texts = opinion_set.read("validation", ("sentence1",)).column("sentence1").to_pylist()
    actual_NC = np.array([[*result["probabilities"].values()] for result in Predictor(tmp_path)(texts)])
    np.testing.assert_allclose(actual_NC, softmax(expected_NC), atol=1e-6)
    assert len(np.unique(actual_NC.round(6))) > 20
    # A student that starts from it has the same encoder.
    again = tiny_config(store / "opinion", tmp_path / "next", **SIZES, init=tmp_path)
    assert train(again, "")["settings"]["embedding"] == "recurrent"
    with pytest.raises(ConfigError, match=naming("--tables", "--embedding recurrent", "--onnx")):
        export(ExportSettings(run=tmp_path, output_dir=tmp_path / "x", tables="int8"))


def test_a_config_claims_no_more_bytes_than_its_weights_have() -> None:
    for model in (recurrent_student(), aligned_student()):
        stored = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        assert model.config.least_bytes <= stored
    for shape in ({"embedding": "recurrent"}, {"embedding": "aligned", "pairing": "attention", "is_pair": True}):
        for weights in ("float32", "rounded"):
            sizes = {"matrix_size": 0, "vector_size": 2**18, "bidirectional": False, "weights": weights}
            assert student_config(**sizes | shape).least_bytes > 2**32


def test_they_label_no_words() -> None:
    settings = TrainSettings.from_flags(set="x", embedding="recurrent")
    with pytest.raises(ConfigError, match=naming("--embedding recurrent: ", "labelled words")):
        build_token_label_config(settings, facts("sst2"))


def test_a_batch_without_sequences() -> None:
    for encoder in (encoder_of(), encoder_of().double()):
        assert encoder.reduce(*ragged([])).shape == (0, encoder.size)


@needs_engine
def test_many_threads_read_new_tokens_at_once(tmp_path: Path) -> None:
    one, tokenizer = made("recurrent")
    write(one, tokenizer, tmp_path, tmp_path / "x.distill")
    first = [text for text, _ in ROWS] * 20
    predictor = Predictor(tmp_path / "x.distill")
    predictor.set_threads(8)
    np.testing.assert_allclose(predictor.logits(first), np.tile(by_torch("recurrent", ROWS), (20, 1)), atol=1e-4)
