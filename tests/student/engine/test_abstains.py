"""The engine abstains where Python does: below the margin of the certificate in its file, to the last digit."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.arrays import Floats
from pipeline.tasks.target import margins, softmax
from pipeline.tasks.temperature import Calibration, calibrated
from student.export.export import export
from student.model.student import Student
from student.predict.certificate import CERTIFICATE_FILE
from student.predict.labels import chosen_names
from student.run_settings import ExportSettings
from tests.helpers.certificates import certify, with_margin
from tests.helpers.engine import HOT, LIBRARY, ROWS, by_torch, inputs, made, needs_engine, write, written
from tests.helpers.engine_files import Header, joined, parts
from tests.helpers.messages import naming
from tests.helpers.tokenizers import texts

pytestmark = needs_engine
if LIBRARY.exists():
    from student.engine.python.distill_student import DistillError, MultiTaskPredictor, Predictor

CLASSES = ("hybrid", "hybrid, maxima, bigrams, linear", "compare, maxima, bigrams", "aligned", "recurrent")
OTHERS = ("diffcat, labels", "score, short words", "joint, bins")


def certified(name: str, folder: Path, threshold: float, one: Student | None = None) -> bytes:
    """The file of a student with a certificate of this margin."""
    one, tokenizer = one or made(name)[0], made(name)[1]
    one.save(folder)
    certify(folder, threshold)
    write(one, tokenizer, folder, folder / "x.distill")
    return (folder / "x.distill").read_bytes()


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {name: certified(name, tmp_path_factory.mktemp("certified"), 0.5) for name in CLASSES}


def labels(content: bytes, given_: tuple[list[str], ...]) -> list[str]:
    return [answer["label"] for answer in Predictor(content).predict(*given_, abstain=True)]


def by_python(name: str, logits_NC: Floats, threshold: float) -> list[str] | list[list[str]]:
    config = made(name)[0].config
    return chosen_names(config.target, calibrated(logits_NC, config.calibration), threshold)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(CLASSES),
    rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=5),
    number=st.integers(0, 4),
    towards=st.sampled_from([-1, 0, 1]),
)
def test_the_next_float_decides(
    contents: dict[str, bytes], name: str, rows: list[tuple[str, str]], number: int, towards: int
) -> None:
    """Certified margins are those of rows, so that one of them is equal to the threshold."""
    given_ = inputs(name, rows)
    logits_NC = Predictor(contents[name]).logits(*given_)
    margin_N = margins(softmax(calibrated(logits_NC, made(name)[0].config.calibration)))
    margin = margin_N[number % len(rows)]
    threshold = float(margin) if not towards else float(np.nextafter(margin, np.float32(towards)))
    found = labels(with_margin(contents[name], threshold), given_)
    assert found == by_python(name, logits_NC, threshold)
    assert (found[number % len(rows)] == "abstain") == (towards >= 0)


@pytest.mark.parametrize("name", CLASSES)
def test_torch_abstains_for_the_same_inputs(contents: dict[str, bytes], name: str) -> None:
    logits_NC = by_torch(name, ROWS)
    margin_N = np.unique(margins(softmax(calibrated(logits_NC, made(name)[0].config.calibration))))
    # Engine and torch differ in the last digits, so the threshold is half-way between two rows.
    widest = np.diff(margin_N).argmax()
    threshold = float(np.float32(margin_N[widest : widest + 2].mean()))
    found = labels(with_margin(contents[name], threshold), inputs(name, ROWS))
    assert found == by_python(name, logits_NC, threshold)
    assert 0 < found.count("abstain") < len(ROWS)


@pytest.mark.parametrize("bias", [[0.0, 0.0, 0.0], [0.0, 1e-9, 0.0], [1.0, 0.0, 1.0], [0.0, 2.0, 2.0]])
@pytest.mark.parametrize("calibration", [None, HOT, Calibration(temperature=(0.05,), num_rows=60)])
def test_equal_probabilities(tmp_path: Path, bias: list[float], calibration: Calibration | None) -> None:
    """The first of equal ones is the label, unless the certificate demands any margin."""
    one = copy.deepcopy(made("hybrid")[0])
    one.config = one.config.model_copy(update={"calibration": calibration})
    last = [layer for layer in one.head.modules() if isinstance(layer, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(bias))
        for norm in one.head.modules():
            if isinstance(norm, torch.nn.LayerNorm):
                norm.bias.zero_()
    content = certified("hybrid", tmp_path, 0.0, one)
    scaled_NC = calibrated(Predictor(content).logits(["a"]), calibration)
    for threshold in (-1.0, 0.0, 0.25):
        expected = chosen_names(one.config.target, scaled_NC, threshold)
        assert labels(with_margin(content, threshold), (["a"],)) == expected
    assert [answer["label"] for answer in Predictor(content).predict(["a"])] == chosen_names(
        one.config.target, scaled_NC
    )


def test_only_where_it_is_asked(contents: dict[str, bytes]) -> None:
    never = Predictor(with_margin(contents["hybrid"], 1.0))
    (plain,), (abstained,) = never.predict(["the a"]), never.predict(["the a"], abstain=True)
    assert abstained == plain | {"label": "abstain"}
    assert plain["label"] in never.labels
    assert never.has_certificate
    assert never.predict([], abstain=True) == []
    assert never.predict_arrays(["the a"], abstain=True)["label"].tolist() == [-1]
    always = Predictor(with_margin(contents["hybrid"], -1.0))
    assert always.predict(["the a", ""], abstain=True) == always.predict(["the a", ""])


@pytest.mark.parametrize("name", ["hybrid", *OTHERS])
def test_without_a_certificate_nothing_abstains(tmp_path: Path, name: str) -> None:
    predictor = Predictor(written(name, tmp_path))
    assert not predictor.has_certificate
    with pytest.raises(DistillError, match=naming("toy", "no certificate", "distill certify")):
        predictor.predict(*inputs(name, ROWS), abstain=True)


def test_each_task_has_its_own(together: Path, tmp_path: Path) -> None:
    run = shutil.copytree(together, tmp_path / "together")
    certify(run / "opinion", 0.25)
    export(ExportSettings(run=run, file=tmp_path / "x.distill"))
    with pytest.raises(DistillError, match=naming("score", "no certificate")):
        MultiTaskPredictor(tmp_path / "x.distill").predict(["good"], abstain=True)
    some = MultiTaskPredictor(tmp_path / "x.distill", tasks=["opinion"])
    words = [f"the {thing} was {word} ." for thing in ("food", "wine", "") for word in ("dull", "lovely", "awful", "")]
    answers = [answer["opinion"] for answer in some.predict(words, abstain=True)]
    assert answers == Predictor(tmp_path / "x.distill", task="opinion").predict(words, abstain=True)
    sure = [max(p := list(one["probabilities"].values())) - min(p) > 0.25 for one in answers]
    assert [one["label"] != "abstain" for one in answers] == sure


def test_certificates_of_other_numbers_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounded ones, and those of weights that have changed since."""
    assert Predictor(certified("hybrid", tmp_path, 0.5)).has_certificate
    assert "warning" not in capsys.readouterr().err
    rounded: list[dict[str, Any]] = [{"table_dtype": "int8"}, {"head_dtype": "bfloat16"}]
    for dtypes in rounded:
        write(*made("hybrid"), tmp_path, tmp_path / "y.distill", **dtypes)
        assert not Predictor(tmp_path / "y.distill").has_certificate
        assert str(tmp_path / CERTIFICATE_FILE) in capsys.readouterr().err.replace("\n", "")
    write(*made("hybrid"), tmp_path, tmp_path / "y.distill", table_dtype="float32")
    assert Predictor(tmp_path / "y.distill").has_certificate
    made("aligned")[0].save(tmp_path)
    write(*made("hybrid"), tmp_path, tmp_path / "y.distill")
    assert not Predictor(tmp_path / "y.distill").has_certificate
    assert "distill certify" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("margin", [float("nan"), -2.0, 1.5, float("inf"), -float("inf")])
def test_a_damaged_margin_is_refused(contents: dict[str, bytes], margin: float) -> None:
    with pytest.raises(DistillError, match=naming("margin", "between")):
        Predictor(with_margin(contents["hybrid"], margin))


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["0.margin"].update(dtype="I32"),
        lambda h: h["0.margin"].update(dtype="F16", shape=[2]),
        lambda h: h["0.margin"].update(shape=[]),
        lambda h: h["0.margin"].update(h["0.out.bias"]),
    ],
)
def test_a_margin_of_another_type_or_shape_is_refused(
    contents: dict[str, bytes], change: Callable[[Header], None]
) -> None:
    header, data = parts(contents["hybrid"])
    change(header)
    with pytest.raises(DistillError, match=naming("0.margin")):
        Predictor(joined(header, data))


@pytest.mark.parametrize("name", OTHERS)
def test_only_classes_have_a_certificate(tmp_path: Path, name: str) -> None:
    header, data = parts(written(name, tmp_path).read_bytes())
    header["0.margin"] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    with pytest.raises(DistillError, match=naming("not of classes")):
        Predictor(joined(header, data))


def test_one_class_has_no_second(contents: dict[str, bytes]) -> None:
    header, data = parts(contents["hybrid"])
    values = json.loads(header["__metadata__"]["distill_student"])
    values["tasks"][0]["labels"] = ["one"]
    header["__metadata__"]["distill_student"] = json.dumps(values)
    for name in ("out", "out.bias", "temperature"):
        entry = header[f"0.{name}"]
        entry["data_offsets"][1] -= 2 * (entry["data_offsets"][1] - entry["data_offsets"][0]) // 3
        entry["shape"][0] = 1
    with pytest.raises(DistillError, match=naming("not of classes")):
        Predictor(joined(header, data))
