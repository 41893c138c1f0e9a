"""The predictions of HTML files in Node, against torch."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from student.export.engine_file import METADATA, engine_tensors
from student.export.html_file import CHUNK_BYTES, compressed, stored_student, write_html
from student.export.int8_rounding import COARSE_MAX, CoarseRounding
from student.model.student import Student
from tests.helpers.engine import OF_TEXTS, ROWS, SHAPE, by_torch, made
from tests.helpers.node import PROGRAM, Node, running_node

NAME = "</script><b>&"
SIZE = SHAPE["vocabulary_size"]
# Half of the tokens have a row.
COUNT_V = np.where(np.arange(SIZE) % 4 == 0, np.arange(SIZE), 0)


def write(name: str, path: Path) -> Student:
    """Writes a student, and returns what its file holds."""
    one, tokenizer = made(name)
    tensors, metadata = engine_tensors(
        {one.config.task: (one, path.parent)}, tokenizer, "int8", "int8", CoarseRounding(COUNT_V)
    )
    assert all(tensor.abs().max() <= COARSE_MAX for tensor in tensors.values() if tensor.dtype == torch.int8), (
        "others compress less"
    )
    write_html(save(tensors, {METADATA: metadata[METADATA]}), NAME, path)
    stored: Student = stored_student(one, tensors)
    return stored


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if PROGRAM is None:
        pytest.skip("needs Node")
    with running_node() as process:
        yield process


@pytest.mark.parametrize("name", OF_TEXTS)
def test_it_predicts_as_torch_does(node: Node, tmp_path: Path, name: str) -> None:
    stored = write(name, tmp_path / "x.html")
    rows = list(ROWS) if stored.config.is_pair else [a for a, _ in ROWS]
    logits_NC, expected_NC = np.array(node.ask(tmp_path / "x.html", rows)["logits"]), by_torch(name, ROWS, stored)
    assert np.abs(logits_NC - expected_NC).max() <= 1e-4 * max(1.0, float(np.ptp(expected_NC)))


def test_tokens_that_no_training_row_has_are_neutral(node: Node, tmp_path: Path) -> None:
    write("hybrid", tmp_path / "x.html")
    known, unknown, nothing = node.ask(tmp_path / "x.html", ["the", "there", "[PAD]"])["logits"]
    assert unknown == nothing
    assert known != nothing


def test_the_file_is_the_same_each_time_and_its_name_is_no_markup(tmp_path: Path) -> None:
    for name in ("x.html", "y.html"):
        write("joint, bins", tmp_path / name)
    html = (tmp_path / "x.html").read_text()
    assert (tmp_path / "y.html").read_text() == html
    assert "<b>" not in html
    assert html.count("</script>") == 4
    assert not re.search(r"https?:|{{|(src|href)=\"(?!data:,)", html.split('<script id="api">')[0])


@given(st.binary(max_size=200), st.integers(0, CHUNK_BYTES // 50))
def test_what_is_compressed_is_a_zlib_stream(content: bytes, repeats: int) -> None:
    assert zlib.decompress(compressed(content * repeats)) == content * repeats


def test_rounded_numbers_take_less_room_than_with_plain_zlib() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 500_000).round().astype(np.int8).tobytes()
    assert len(compressed(numbers)) < 0.95 * len(zlib.compress(numbers, 9))
