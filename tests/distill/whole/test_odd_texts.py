"""Odd texts get the same answers through every door: Python, ONNX, HTML, SQL and HTTP.

A `Predictor` refuses a text with half a surrogate pair, which is no text in UTF-8. So do the others: DuckDB and Arrow
before a query runs, a server as JSON that it cannot read, and a page. A file of ONNX takes ids and no texts. Every door
takes a NUL.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.requests import MAX_CHARACTERS
from distill.apps.serve.served import Served
from pipeline.arrays import Floats, Ragged
from pipeline.errors import DataError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import tokenizer_sha256
from student.export.engine_file import write_engine_file
from student.export.html_file import write_html
from student.export.onnx_file import write_onnx
from student.model.architecture import sequences
from student.model.student import Student
from student.predict.predictor import Predictor
from student.sql_functions import register
from student.texts import has_text
from tests.helpers.asgi import ask
from tests.helpers.messages import naming
from tests.helpers.node import PROGRAM, Node, running_node
from tests.helpers.odd_texts import HALF_PAIRS, odd_texts
from tests.helpers.onnx_files import session
from tests.helpers.tokenizers import TOKENS, bert, expected
from tests.helpers.toy_students import add_ngrams, aligned_student, lstm_student, pair_student, student

LENGTH, BATCH = 14, 250
SHAPE: dict[str, object] = {"vocabulary_size": 2 * len(TOKENS), "max_seq_length": LENGTH, "initializer_range": 0.3}
SHAPE |= {"target": Target(kind="classes", names=("no", "yes", "maybe")), "hidden_dropout": 0}
STUDENTS: dict[str, Callable[[], Student]] = {
    "Hybrid, maxima, pairs of tokens": lambda: pair_student(**SHAPE, bidirectional=False, pooling="sum+max"),
    "CBOW, maxima, two texts": lambda: student(**SHAPE, matrix_size=0, is_pair=True, pooling="sum+max"),
    "CMOW, two texts as one": lambda: student(
        **SHAPE, vector_size=0, is_pair=True, pairing="joint", special_ids=((4,), (6,), (6,))
    ),
    "LSTMs with attention": lambda: lstm_student("biattentive", **SHAPE, head="plain-mlp"),
    "aligned, two texts": lambda: aligned_student(**SHAPE),
    "windows": lambda: student(**SHAPE, window_size=4, pooling="sum+max"),
    "n-grams, recurrent": lambda: student(**SHAPE, embedding="recurrent"),
    "n-grams, two texts": lambda: student(**SHAPE, matrix_size=0, is_pair=True),
    "n-grams, two texts as one": lambda: student(
        **SHAPE, vector_size=0, is_pair=True, pairing="joint", special_ids=((4,), (6,), (6,))
    ),
}
TEXTS = [text for text in odd_texts(10_000) if has_text([text])]  # a server refuses the others

Inputs = tuple[list[str], ...]  # the texts, or the first and the second ones of pairs


@pytest.fixture(scope="module")
def node() -> Iterator[Node | None]:
    """Node, where there is one; without it pages are left out."""
    if PROGRAM is None:
        yield None
        return
    with running_node() as process:
        yield process


class Door:
    """A trained student's folder, and the texts that are read by it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.tokenizer = folder, bert()
        made, number = STUDENTS[name](), list(STUDENTS).index(name)
        content = self.tokenizer.to_str()
        if name.startswith("n-grams"):
            add_ngrams(made, content)
        made.config = made.config.model_copy(update={"tokenizer_sha256": tokenizer_sha256(content)})
        self.has_page = name != "LSTMs with attention"
        # torch takes half a minute to export every kind; tests/student/export has one of each kind
        self.has_graph = name.startswith(("Hybrid", "CBOW"))
        folder.mkdir()
        made.save(folder)
        (folder / TOKENIZER_FILE).write_text(content)
        self.predictor = Predictor(folder)
        self.config = self.predictor.student.config
        texts = TEXTS[number :: len(STUDENTS)]
        self.inputs: Inputs = (texts, texts[::-1]) if self.config.is_pair else (texts,)

    def by_onnx(self) -> Floats:
        """The logits of a file, whose ids the `tokenizers` library makes."""
        write_onnx(self.predictor.student, self.folder / "x.onnx")
        run, answers = session(self.folder / "x.onnx"), []
        for batch in _batches(self.inputs):
            ids = [Ragged.of(part) for part in expected(self.tokenizer, batch[0], (*batch, None)[1], LENGTH)]
            parts = sequences(self.config, *ids)
            padded = [part.padded(range(len(part)), self.config.pad_id) for part in parts]
            answers += run.run(None, {f"ids{k}": part for k, part in enumerate(padded, 1)})
        return np.concatenate(answers)

    def by_page(self, node: Node) -> Floats:
        """The logits of an HTML file in Node."""
        self.write_page()
        rows = list(zip(*self.inputs, strict=True)) if self.config.is_pair else self.inputs[0]
        return np.array(node.ask(self.folder / "x.html", rows)["logits"])

    def write_page(self) -> None:
        """Writes a page with the student's numbers as they are, which the command rounds."""
        write_engine_file({"odd": (self.predictor.student, self.folder)}, self.tokenizer, self.folder / "x.distill")
        write_html((self.folder / "x.distill").read_bytes(), "odd", self.folder / "x.html")

    def by_sql(self) -> tuple[list[str], Floats]:
        """The labels and the probabilities of queries."""
        columns = dict(zip("ab", self.inputs, strict=False))
        arguments = ", ".join([f"'{self.folder}'", *columns])
        with duckdb.connect() as own:
            own.register("rows", pa.table({"n": range(len(self.inputs[0])), **columns}))
            register(own, self.folder)
            query = f"select predict({arguments}), scores({arguments}) from rows order by n"
            labels, scores = zip(*own.execute(query).fetchall(), strict=True)
        return list(labels), np.array(scores)

    def by_http(self) -> Floats:
        """The logits of a server."""
        app, answers = self.server(), []
        for batch in _batches(self.inputs):
            body = {"inputs": [list(row) for row in zip(*batch, strict=True)], "raw_scores": True}
            answer = ask(app, "POST", "/predict", body)
            assert answer.status == 200, answer.body
            answers += [{one["label"]: one["score"] for one in ranking} for ranking in answer.json]
        return np.array([[row[name] for name in self.config.target.names] for row in answers])

    def server(self) -> App:
        metrics, config = Metrics(1), ServeSettings(runs=("odd",), payload_limit=10**8)
        return App({"odd": Served(self.folder, metrics)}, config, metrics)


def _batches(inputs: Inputs) -> Iterator[Inputs]:
    for start in range(0, len(inputs[0]), BATCH):
        yield tuple(part[start : start + BATCH] for part in inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_every_door_gives_the_same_answers(name: str, tmp_path: Path, node: Node | None) -> None:
    door = Door(name, tmp_path / "run")
    logits_NC = door.predictor.logits(*door.inputs)
    assert np.isfinite(logits_NC).all()
    assert len(np.unique(logits_NC.round(4), axis=0)) > 100
    few = [door.predictor.logits(*([text] for text in row)) for row in list(zip(*door.inputs, strict=True))[:60]]
    np.testing.assert_allclose(np.concatenate(few), logits_NC[:60], rtol=1e-4, atol=1e-4)  # one at a time
    if door.has_graph:
        np.testing.assert_allclose(door.by_onnx(), logits_NC, rtol=1e-4, atol=1e-4)
    if node is not None and door.has_page:
        np.testing.assert_allclose(door.by_page(node), logits_NC, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(door.by_http(), logits_NC, rtol=1e-4, atol=1e-4)
    answers, (labels, scores) = door.predictor(*door.inputs), door.by_sql()
    assert labels == [answer["label"] for answer in answers]
    np.testing.assert_allclose(scores, [list(answer["probabilities"].values()) for answer in answers], atol=1e-5)


def test_half_a_surrogate_pair_is_refused_at_every_door(tmp_path: Path, node: Node | None) -> None:
    door = Door("Hybrid, maxima, pairs of tokens", tmp_path / "run")
    door.write_page()
    app = door.server()
    with duckdb.connect() as own:
        register(own, door.folder)
        for text in HALF_PAIRS:
            with pytest.raises(DataError, match=naming("sentence 1 ", "surrogate", ascii(text)[1:-1])):
                door.predictor(["a", text])
            with pytest.raises(UnicodeEncodeError):
                pa.table({"a": [text]})
            with pytest.raises(duckdb.InvalidInputException, match="surrogate"):
                own.execute(f"select predict('{door.folder}', ?)", [text])
            refused = ask(app, "POST", "/predict", json.dumps({"inputs": text}).encode())
            assert (refused.status, "hex escape" in refused.json["error"]) == (400, True)
            if node is not None:
                assert "surrogate" in node.ask(door.folder / "x.html", ["a", text])["error"]


def test_a_server_names_a_text_that_is_too_long(tmp_path: Path) -> None:
    door = Door("windows", tmp_path / "run")
    assert ask(door.server(), "POST", "/predict", {"inputs": "a" * MAX_CHARACTERS}).status == 200
    refused = ask(door.server(), "POST", "/predict", {"inputs": [["a"], ["a" * (MAX_CHARACTERS + 1)]]})
    assert (refused.status, "input 1 " in refused.json["error"]) == (413, True)
