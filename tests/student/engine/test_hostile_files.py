"""Files that are no student's, or nearly: refused with a message or read, and never read beyond their end."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from student.export.export import export
from student.run_settings import ExportSettings
from tests.helpers.engine import LIBRARY, needs_engine, written
from tests.helpers.engine_files import Header, joined, parts
from tests.helpers.messages import naming

pytestmark = needs_engine
if LIBRARY.exists():
    from student.engine.python.distill_student import DistillError, MultiTaskPredictor, Predictor

FLIPS = 1500


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("hostile")
    name = "hybrid, maxima, bigrams, linear"
    return written(name, folder, table_dtype="int8").read_bytes()


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("aligned")
    return written("aligned", folder, table_dtype="int8", head_dtype="int8").read_bytes()


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recurrent")
    return written("recurrent", folder, table_dtype="int8", head_dtype="int8").read_bytes()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("words")
    return written("words", folder, table_dtype="int8", head_dtype="int8").read_bytes()


def read(path: Path) -> bool:
    """Opens a file and calls all functions. If it is a student, each text gets a prediction."""
    try:
        predictor = Predictor(path, threads=1)
    except DistillError:
        return False
    texts = ["a b [MASK] the there中 é", "", "ab" * 60, "\U0001f600 x"]
    sentences = [text.split(" ") for text in texts]
    inputs = [sentences] if predictor.labels_words else [texts, texts] if predictor.is_pair else [texts]
    assert len(predictor.predict(*inputs)) == len(texts)
    assert len(predictor.encode(texts)) == len(texts)
    predictor.tokenize(texts[0])
    return True


def with_settings(content: bytes, change: Callable[[Header], None]) -> bytes:
    header, data = parts(content)
    values = json.loads(header["__metadata__"]["distill_student"])
    change(values)
    header["__metadata__"]["distill_student"] = json.dumps(values)
    return joined(header, data)


def with_setting(content: bytes, name: str, value: object) -> bytes:
    """The file with another value for a setting of the student, or of its first task."""

    def change(values: Header) -> None:
        (values if name in values else values["tasks"][0])[name] = value

    return with_settings(content, change)


def test_the_whole_file_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(joined(*parts(content)))
    assert Predictor(tmp_path / "x").predict(["a"])


def test_truncated_files(content: bytes, tmp_path: Path) -> None:
    for length in [0, 1, 7, 8, 9, 100, *range(0, len(content), len(content) // 100)]:
        (tmp_path / "x").write_bytes(content[:length])
        with pytest.raises(DistillError):
            Predictor(tmp_path / "x")


@pytest.mark.parametrize("name", ["content", "aligned", "recurrent", "words"])
def test_flipped_bytes(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    content: bytes = request.getfixturevalue(name)
    header_bytes = 8 + struct.unpack("<Q", content[:8])[0]
    source = random.Random(0)  # noqa: S311
    opened = []
    for number in range(FLIPS):
        changed = bytearray(content)
        for _ in range(1 + number % 3):
            changed[source.randrange(header_bytes if number % 2 else len(content))] = source.randrange(256)
        (tmp_path / "x").write_bytes(changed)
        opened.append(read(tmp_path / "x"))
    assert any(opened)  # flips among weights leave a student, which answers
    assert not all(opened)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["rows"].update(data_offsets=[0, 10**14]), "between"),
        (lambda h: h["rows"].update(data_offsets=[0, 2**62]), "whole numbers"),
        (lambda h: h["rows"].update(data_offsets=[8, 0]), "between"),
        (lambda h: h["rows"].update(shape=[2**40, 2**40]), "between"),
        (lambda h: h["rows"].update(shape=[1, 1]), "rows"),
        (lambda h: h["rows"].update(dtype="F64"), "F64"),
        (lambda h: h["rows"].update(dtype="U8"), "rows"),
        (lambda h: h.pop("rows"), "rows"),
        (lambda h: h["vectors"].update(shape=[1, 1]), "vectors"),
        (lambda h: h["vectors"].update(dtype="BF16"), "vectors"),
        (lambda h: h.pop("vectors"), "a row that is not there"),
        (lambda h: h.pop("row_of_token"), "row_of_token"),
        (lambda h: h.pop("__metadata__"), "distill export"),
        (lambda h: h["__metadata__"].update(distill_student="["), "too early"),
        (lambda h: h["__metadata__"].update(distill_student="[" * 999), "too many"),
    ],
)
def test_headers_that_do_not_fit(
    content: bytes, tmp_path: Path, change: Callable[[Header], None], message: str
) -> None:
    header, data = parts(content)
    change(header)
    (tmp_path / "x").write_bytes(joined(header, data))
    with pytest.raises(DistillError, match=naming(message)):
        Predictor(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2),
        ("num_tokens", 7),
        ("num_tokens", 2**50),
        ("pad", -1),
        ("side", 65),
        ("side", 4),
        ("vector_size", 2**15),
        ("hidden", 12),
        ("hidden_of", 1),
        ("hidden_of", -1),
        ("bigram_size", 9),
        ("labels", []),
        ("labels", ["one"]),
        ("pairing", "else"),
        ("is_pair", True),
        ("normalises", 1),
        ("task", 3),
        ("tasks", []),
        ("tasks", [{}]),
        ("kind", "bins"),
        ("kind", 3),
        ("maxima", False),
        ("compared", 3),
        ("before", [10**9]),
        ("tokenizer", {}),
    ],
)
def test_settings_that_do_not_fit(content: bytes, tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "x").write_bytes(with_setting(content, name, value))
    with pytest.raises(DistillError, match="x: "):
        Predictor(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("state_size", value) for value in (0, 9, 23, -1, 2**17)],
        ("maxima", False),
        ("window", 3),
        ("compared", 3),
        ("bigram_size", 9),
        ("vector_size", 21),
        ("kind", "words"),
    ],
)
def test_settings_that_do_not_fit_a_recurrence(recurrent: bytes, tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "x").write_bytes(with_setting(recurrent, name, value))
    with pytest.raises(DistillError, match="x: "):
        Predictor(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("compared", 0), ("compared", 12), ("compared", 2**17), ("maxima", True), ("window", 3), ("vector_size", 0)]
    + [("pairing", pairing) for pairing in ("joint", "compare", "none")],
)
def test_settings_of_comparisons_that_do_not_fit(aligned: bytes, tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "x").write_bytes(with_setting(aligned, name, value))
    with pytest.raises(DistillError, match="x: "):
        Predictor(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", ["B-X", "o", "I-X"]),
        ("is_pair", True),
        ("maxima", True),
        ("window", 3),
        ("bigram_size", 3),
        ("bidirectional", False),
        ("side", 0),
        ("vector_size", 0),
        ("hidden", 12),
        ("kind", "classes"),
        ("pairing", "x"),
    ],
)
def test_settings_of_words_that_do_not_fit(words: bytes, tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "x").write_bytes(with_setting(words, name, value))
    with pytest.raises(DistillError, match="x: "):
        Predictor(tmp_path / "x")


@pytest.mark.parametrize("number", [0, 2])  # that of single texts, and a later one
def test_a_hidden_layer_that_does_not_fit(together: Path, tmp_path: Path, number: int) -> None:
    export(ExportSettings(run=together, file=tmp_path / "good"))

    def change(values: Header) -> None:
        values["tasks"][1]["hidden_of"] = number

    (tmp_path / "x").write_bytes(with_settings((tmp_path / "good").read_bytes(), change))
    with pytest.raises(DistillError, match="x: "):
        MultiTaskPredictor(tmp_path / "x")
    assert MultiTaskPredictor(tmp_path / "good").predictors


@pytest.mark.parametrize("name", ["row_of_token", "pieces.ids", "pieces.ends", "bigrams.pairs", "characters.firsts"])
@pytest.mark.parametrize("value", [-1, 2**30, -(2**31)])
def test_numbers_that_do_not_fit(content: bytes, tmp_path: Path, name: str, value: int) -> None:
    header, data = parts(content)
    _, end = header[name]["data_offsets"]
    changed = data[: end - 4] + struct.pack("<i", value) + data[end:]
    (tmp_path / "x").write_bytes(joined(header, changed))
    with pytest.raises(DistillError, match="x: "):
        Predictor(tmp_path / "x")
