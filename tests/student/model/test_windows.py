"""Long texts by windows: against each window read alone, and what that is for."""

import json
from pathlib import Path

import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from student.encoders.matrices import MatrixEncoder, window_starts
from student.export.export import export
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import student_config

LENGTHS = (7, 0, 3, 1, 12, 4)
SIZE = 3
SHAPE = {"vocabulary_size": 30, "matrix_size": 3, "vector_size": 4, "bidirectional": True, "pad_id": 0}


def encoders(**changes: object) -> tuple[MatrixEncoder, MatrixEncoder]:
    """An encoder of whole sequences and one of windows, with the same loud tables."""
    torch.manual_seed(0)
    shape = SHAPE | {"initializer_range": 0.7, "pooling": "sum+max"} | changes
    whole, windowed = (MatrixEncoder(student_config(**shape, window_size=size)) for size in (None, SIZE))
    windowed.load_state_dict(whole.state_dict())
    return whole, windowed


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    starts_S = torch.tensor([0, *LENGTHS]).cumsum(0)
    return torch.randint(1, 30, (int(starts_S[-1]),), generator=torch.Generator().manual_seed(1)), starts_S


def test_windows_are_of_one_sequence_each_and_together_all_of_it() -> None:
    starts, sequences = window_starts(inputs()[1], SIZE)
    assert starts.tolist() == [0, 3, 6, 7, 7, 10, 11, 14, 17, 20, 23, 26, 27]
    assert sequences.tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 5, 5]


def test_features_are_means_over_windows_and_maxima_over_all() -> None:
    whole, windowed = encoders()
    ids_T, starts_S = inputs()
    features_NF = windowed.reduce(ids_T, starts_S)
    for n, length in enumerate(LENGTHS):
        ids = ids_T[starts_S[n] : starts_S[n + 1]]
        parts = [whole.reduce(w, torch.tensor([0, len(w)])) for w in (torch.split(ids, SIZE) if length else [ids])]
        expected = torch.cat(parts).mean(dim=0)
        expected[4:8] = whole.reduce(ids, torch.tensor([0, length]))[0, 4:8]
        torch.testing.assert_close(features_NF[n], expected, rtol=1e-4, atol=1e-5)
    short = [n for n, length in enumerate(LENGTHS) if length <= SIZE]
    torch.testing.assert_close(features_NF[short], whole.reduce(ids_T, starts_S)[short])


def test_gradients_are_those_of_finite_differences() -> None:
    windowed = encoders()[1]
    ids_T, starts_S = inputs()
    weight = windowed.forward_matrices.table.weight  # type: ignore[union-attr]
    (windowed.reduce(ids_T, starts_S) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    row, step = int(ids_T[2]), 1e-2
    with torch.no_grad():
        found = []
        for sign in (1, -1):
            weight[row, 4] += sign * step
            found.append(float((windowed.reduce(ids_T, starts_S).double() ** 2).sum()))
            weight[row, 4] -= sign * step
    assert weight.grad is not None
    assert float(weight.grad[row, 4]) == pytest.approx((found[0] - found[1]) / (2 * step), rel=0.02)


@torch.no_grad()
def test_products_of_two_thousand_tokens_still_tell_texts_apart() -> None:
    whole, windowed = encoders(initializer_range=0.3, vector_size=0, pooling=None)
    starts_S = torch.tensor([0, 2000, 4000])
    ids_T = torch.randint(1, 30, (4000,), generator=torch.Generator().manual_seed(2))
    lost_NF, kept_NF = whole.reduce(ids_T, starts_S), windowed.reduce(ids_T, starts_S)
    assert not (lost_NF.abs().max() < 1e3 and lost_NF.abs().max() > 1e-3)
    assert kept_NF.abs().max() < 1e2
    assert float((kept_NF[0] - kept_NF[1]).abs().max()) > 1e-2


def test_a_student_of_windows_is_trained_kept_and_read(opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = train(tiny_config(opinion_set.root, tmp_path, window_size=2, num_train_epochs=1), "")
    assert record["settings"]["window_size"] == 2
    assert json.loads((tmp_path / "config.json").read_text())["encoder"]["window_size"] == 2
    predictor = Predictor(tmp_path)
    assert predictor.student.encoder.window_size == 2
    assert "averaged over windows of 2 tokens" in (tmp_path / "README.md").read_text()
    with pytest.raises(ConfigError, match=naming("--onnx: ", "windows")):
        export(ExportSettings(run=tmp_path, onnx=tmp_path / "student.onnx", store=opinion_set.root.parent))


def test_heads_that_read_each_token_take_no_windows(opinion_set: ExampleSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--window-size: ", "--head bilstm")):
        train(tiny_config(opinion_set.root, tmp_path, window_size=2, head="bilstm", hidden_size=None), "")
