"""The engine in WebAssembly, as Node's package: the same tokens, logits, answers and messages as natively."""

import ctypes
import importlib.util
import random
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from student.engine.build import ZIG, build_wasm
from student.export.export import export
from student.run_settings import ExportSettings
from tests.helpers.certificates import certify
from tests.helpers.engine import (
    DTYPES,
    LIBRARY,
    ROWS,
    STUDENTS,
    by_torch,
    finite,
    inputs,
    made,
    needs_engine,
    rounded,
    write,
)
from tests.helpers.node import PACKAGE, PROGRAM, Node, running_node
from tests.helpers.odd_texts import HALF_PAIRS
from tests.helpers.tokenizers import texts

pytestmark = [needs_engine, pytest.mark.skipif(PROGRAM is None, reason="needs Node")]
if LIBRARY.exists():
    from student.engine.python.distill_student import DistillError, Predictor, _library

FLIPS = 450


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as process:
        yield process


def as_pairs(name: str, rows: list[tuple[str, str]]) -> list[Any]:
    """Rows as Node takes them."""
    return list(rows) if made(name)[0].config.is_pair else inputs(name, rows)[0]


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize(("dtypes", "_"), DTYPES)
def test_the_logits_are_those_of_torch(node: Node, tmp_path: Path, name: str, dtypes: dict[str, Any], _: float) -> None:
    """Weights of all types become floats, and inputs are not rounded."""
    write(*made(name), tmp_path, tmp_path / "x.distill", **dtypes)
    expected_NC = by_torch(name, ROWS, rounded(name, tmp_path / "x.distill"))
    expected_NC = finite(expected_NC)
    actual_NC = finite(node.ask(tmp_path / "x.distill", as_pairs(name, ROWS))["logits"])
    assert np.abs(actual_NC - expected_NC).max() <= 1e-4 * max(1.0, float(np.ptp(expected_NC)))


@pytest.mark.parametrize("name", STUDENTS)
def test_the_answers_are_those_of_the_library(node: Node, files: dict[str, Path], name: str) -> None:
    expected = Predictor(files[name]).predict(*inputs(name, ROWS))
    actual = node.ask(files[name], as_pairs(name, ROWS))["predictions"]
    if Predictor(files[name]).labels_words:
        assert [*map(len, actual)] == [*map(len, expected)]
        expected, actual = ([word for sentence in answers for word in sentence] for answers in (expected, actual))
    assert len(actual) == len(expected)
    for answer, other in zip(actual, expected, strict=True):
        assert list(answer) == list(other)
        assert answer.get("label") == other.get("label")
        numbers, others = (one.get("probabilities", {"score": one.get("score")}) for one in (answer, other))
        assert numbers == pytest.approx(others, rel=1e-3, abs=1e-5)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(STUDENTS)), given=st.lists(texts, min_size=1, max_size=6))
def test_the_tokens_are_those_of_the_library(node: Node, files: dict[str, Path], name: str, given: list[str]) -> None:
    predictor = Predictor(files[name])
    assert node.tokens(files[name], given) == [predictor.tokenize(text) for text in given]


def test_it_abstains_where_the_library_does(node: Node, files: dict[str, Path], tmp_path: Path) -> None:
    one, tokenizer = made("hybrid")
    one.save(tmp_path)
    certify(tmp_path, 0.5)
    write(one, tokenizer, tmp_path, tmp_path / "x.distill")
    given_ = as_pairs("hybrid", ROWS)
    expected = [answer["label"] for answer in Predictor(tmp_path / "x.distill").predict(given_, abstain=True)]
    assert 0 < expected.count("abstain") < len(expected)
    plain = [answer["label"] for answer in Predictor(files["hybrid"]).predict(given_)]
    for abstain, labels in ((True, expected), (False, plain)):
        answers = node.ask(tmp_path / "x.distill", given_, abstain=abstain)["predictions"]
        assert [answer["label"] for answer in answers] == labels
    assert "no certificate" in node.ask(files["hybrid"], ["a"], abstain=True)["error"]


def test_many_inputs_and_none(node: Node, files: dict[str, Path]) -> None:
    many = [f"the ab{'!' * (n % 7)} there {'a ' * (n % 5)}" for n in range(500)]
    expected_NC = Predictor(files["hybrid"]).logits(many)
    np.testing.assert_allclose(node.ask(files["hybrid"], many)["logits"], expected_NC, rtol=1e-4, atol=1e-4)
    assert node.ask(files["hybrid"], []) == {"logits": [], "predictions": []}


def test_one_task_of_several(node: Node, together: Path, tmp_path: Path) -> None:
    path = tmp_path / "together.distill"
    export(ExportSettings(run=together, file=path))
    for task, texts_ in (("opinion", [["a good one"]]), ("score", [["a good one"]]), ("roles", [["anna"], ["ben"]])):
        expected_NC = Predictor(path, task=task).logits(*texts_)
        rows = list(zip(*texts_, strict=True)) if len(texts_) == 2 else texts_[0]
        np.testing.assert_allclose(node.ask(path, rows, task)["logits"], expected_NC, rtol=1e-4, atol=1e-4)
    assert "Choose one of opinion, roles, score" in node.ask(path, ["a"])["error"]
    assert "no task opinions. It has opinion, roles, score" in node.ask(path, ["a"], "opinions")["error"]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("hybrid", [["a", "b"]]),
        ("hybrid", [3]),
        ("diffcat, labels", ["a"]),
        ("diffcat, labels", [["a"]]),
        ("words", ["a"]),
        ("words", [["a", 3]]),
        ("words", [3]),
    ],
)
def test_other_inputs_are_refused(node: Node, files: dict[str, Path], name: str, inputs: Any) -> None:
    assert "TypeError: this student of toy takes" in node.ask(files[name], inputs)["error"]


def test_half_a_surrogate_pair_is_refused(node: Node, files: dict[str, Path]) -> None:
    for text in HALF_PAIRS:
        assert "surrogate" in node.ask(files["hybrid"], ["a", text])["error"]
    assert "error" not in node.ask(files["hybrid"], ["a"])


def message_of(path: Path) -> str | None:
    """Why the library refuses a file, if it does."""
    try:
        Predictor(path)
    except DistillError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["hybrid, maxima, bigrams, linear", "aligned", "recurrent", "words"])
def test_damaged_files_have_the_messages_of_the_library(node: Node, tmp_path: Path, name: str) -> None:
    """Truncated, or with flipped bytes: an Error with its message, or the same student."""
    path = tmp_path / "x.distill"
    write(*made(name), tmp_path, path, table_dtype="int8", head_dtype="int8")
    content, source, opened = path.read_bytes(), random.Random(0), []  # noqa: S311
    header_bytes = 8 + int.from_bytes(content[:8], "little")
    for number in range(FLIPS):
        changed = bytearray(content)
        changed[source.randrange(len(content) if number % 3 else header_bytes)] = source.randrange(256)
        damaged = tmp_path / f"{number}.distill"
        damaged.write_bytes(changed[: source.randrange(len(content))] if number % 10 == 0 else changed)
        answer = node.ask(damaged, as_pairs(name, ROWS[:5]))
        message = message_of(damaged)
        if message is None:
            opened.append(number)
            assert len(answer["predictions"]) == 5
        else:
            assert answer == {"error": f"Error: {message}"}
    assert FLIPS / 10 < len(opened) < FLIPS


def test_bytes_in_memory_are_a_student(files: dict[str, Path]) -> None:
    """The function by which WebAssembly opens files, in the library."""
    content, handle, count = files["hybrid"].read_bytes(), ctypes.c_void_p(), ctypes.c_int64()
    arguments = ctypes.c_char_p(content), ctypes.c_int64(len(content)), ctypes.byref(handle)
    assert _library.distill_open_bytes(*arguments) == 0
    ids = (ctypes.c_int32 * 8)()
    assert _library.distill_tokenise(handle, b"the ab", 6, ctypes.addressof(ids), 8, ctypes.byref(count)) == 0
    assert ids[: count.value] == Predictor(files["hybrid"]).tokenize("the ab")
    _library.distill_close(handle)
    for size, message in ((0, b"too short"), (8, b"too short"), (len(content) // 2, b"between")):
        assert _library.distill_open_bytes(content, ctypes.c_int64(size), ctypes.byref(handle)) == 1
        assert message in _library.distill_last_error()
        assert handle.value is None


@pytest.mark.slow
def test_the_module_is_that_of_the_sources(tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None or version("ziglang") != ZIG:
        pytest.skip(f"needs ziglang {ZIG}")
    build_wasm(tmp_path / "engine.wasm")
    assert (tmp_path / "engine.wasm").read_bytes() == (PACKAGE / "engine.wasm").read_bytes(), (
        "run python student/engine/build.py --wasm student/engine/node/engine.wasm"
    )
