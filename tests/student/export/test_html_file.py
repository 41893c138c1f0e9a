"""The predictions of HTML files in Node, against torch and `tokenizers`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from pipeline.arrays import Floats, Ragged
from pipeline.errors import ConfigError
from pipeline.tasks.target import Target
from pipeline.tasks.task import Bins
from student.answers.torch_predictor import in_batches
from student.export.html_file import CoarseStudent, check_writable, coarse, write_html
from student.model.architecture import sequences
from student.model.embeddings import matrix_encoder
from tests.helpers.messages import naming
from tests.helpers.node import PROGRAM, Node, running_node
from tests.helpers.token_sets import word_tokenizer
from tests.helpers.tokenizers import TOKENS, VARIANTS, bert, expected, texts
from tests.helpers.toy_students import student

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Node")
LENGTH = 14
SCORES = Target(kind="score", names=("score",))
BINS = Target(kind="bins", names=("0", "2", "4"), bins=Bins(low=0, high=4, width=2))
PAIRS = [(2 * a, 2 * b) for a in range(len(TOKENS)) for b in range(len(TOKENS)) if (a + b) % 3]
BIGRAMS = {"num_bigrams": len(PAIRS), "bigram_size": 5}
STUDENTS: dict[str, tuple[str, dict[str, Any]]] = {  # the tokenizer and what is unusual of the student
    "pairs of tokens": ("uncased", {"matrix_size": 4, "vector_size": 5, "hidden_size": 7, **BIGRAMS}),
    "Hybrid": ("uncased", {"matrix_size": 20, "vector_size": 37, "pooling": "sum+max", "hidden_size": 7}),
    "one way, linear": ("cased", {"bidirectional": False, "head": "linear", "hidden_size": None, "matrix_size": 5}),
    "CBOW, compare": (
        "another prefix",
        {"matrix_size": 0, "is_pair": True, "pairing": "compare", "pooling": "sum+max", "target": BINS},
    ),
    "CMOW, diffcat": ("uncased with accents", {"vector_size": 0, "is_pair": True, "target": SCORES, "matrix_size": 6}),
    "joint, pairs of tokens": (
        "added",
        {**BIGRAMS, "is_pair": True, "pairing": "joint", "special_ids": ((4,), (6,), (6, 0)), "pooling": "sum+max"},
    ),
}


def made(name: str) -> tuple[CoarseStudent, Tokenizer]:
    """A coarse student in which half of the tokens have a row, and its tokenizer."""
    variant, changes = STUDENTS[name]
    tokenizer = VARIANTS[variant]()
    shape = {"vocabulary_size": 2 * len(TOKENS) + 10, "max_seq_length": LENGTH, "initializer_range": 0.3}
    size = shape["vocabulary_size"]
    count_V = np.where(np.arange(size) % 4 == 0, np.arange(size), 0)
    count_V[2 * len(TOKENS) - 2 :] = 0  # what is no token
    whole = student(**shape | changes)
    bigrams = matrix_encoder(whole.encoder).bigrams
    if bigrams is not None:
        bigrams.set_pairs(torch.tensor(PAIRS))
        bigrams.take_over(bigrams.pairs_K2, torch.randn(len(PAIRS), 5))
    return coarse(whole, count_V), tokenizer


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as process:
        yield process


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, CoarseStudent, Tokenizer]]:
    folder, result = tmp_path_factory.mktemp("html"), {}
    for number, name in enumerate(STUDENTS):
        one, tokenizer = made(name)
        write_html(one, tokenizer, f"</script><b>{name}", folder / f"{number}.html")
        result[name] = folder / f"{number}.html", one, tokenizer
    return result


def by_torch(one: CoarseStudent, tokenizer: Tokenizer, rows: list[tuple[str, str]]) -> Floats:
    """The logits of pairs, or of their first sentences."""
    config = one.student.config
    first, second = [a for a, _ in rows], [b for _, b in rows] if config.is_pair else None
    ids = [Ragged.of(part) for part in expected(tokenizer, first, second, LENGTH)]
    return in_batches(one.student.logits, sequences(config, *ids), config.target.num_logits, torch.device("cpu"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(STUDENTS)), rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_it_says_what_torch_says(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node, name: str, rows: list[tuple[str, str]]
) -> None:
    path, one, tokenizer = written[name]
    inputs = rows if one.student.config.is_pair else [a for a, _ in rows]
    np.testing.assert_allclose(node.ask(path, inputs)["logits"], by_torch(one, tokenizer, rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["CBOW, compare", "joint, pairs of tokens"])
def test_the_longer_sentence_of_a_pair_is_cut_first(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node, name: str
) -> None:
    path, one, tokenizer = written[name]
    lengths = (0, 2, 5, 6, 9, LENGTH, 30)
    first, second = (
        [" ".join(text.split()[:length]) for length in lengths] for text in ("a b é ] " * 8, "i the ß " * 10)
    )
    rows = [(a, b) for a in first for b in second]
    np.testing.assert_allclose(node.ask(path, rows)["logits"], by_torch(one, tokenizer, rows), rtol=1e-4, atol=1e-4)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(STUDENTS)), given=st.lists(texts, min_size=1, max_size=6))
def test_it_reads_what_the_library_reads(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node, name: str, given: list[str]
) -> None:
    path, one, tokenizer = written[name]
    row_of = {int(token): row for row, token in enumerate(one.ids_R, 1)} | {one.student.config.pad_id: -1}
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch(given, add_special_tokens=False)
    assert node.tokens(path, given) == [[row_of.get(token, 0) for token in encoding.ids] for encoding in encodings]


def test_more_inputs_than_it_takes_at_once(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node
) -> None:
    path = written["Hybrid"][0]
    given = [f"the ab{'!' * (n % 7)} there {'a ' * (n % 5)}" for n in range(150)]
    alone = [node.ask(path, [text])["logits"][0] for text in given[:20]]
    together = node.ask(path, given)["logits"]
    np.testing.assert_allclose(together[:20], alone, rtol=1e-5, atol=1e-5)
    assert len(together) == 150
    assert together[149] == node.ask(path, given[128:])["logits"][21]


def test_predictions_are_labels_or_scores(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node
) -> None:
    answer = node.ask(written["Hybrid"][0], ["the ab"])
    ((logits,), (prediction,)) = answer["logits"], answer["predictions"]
    p = np.exp(logits) / np.exp(logits).sum()
    assert prediction["label"] == ("no", "yes", "maybe")[int(np.argmax(p))]
    assert prediction["probabilities"] == pytest.approx(dict(zip(("no", "yes", "maybe"), p, strict=True)))
    score = node.ask(written["CMOW, diffcat"][0], [["the", "ab"]])
    assert score["predictions"] == [{"score": score["logits"][0][0]}]
    binned = node.ask(written["CBOW, compare"][0], [["the", "ab"]])
    p = np.exp(binned["logits"][0]) / np.exp(binned["logits"][0]).sum()
    assert binned["predictions"][0]["score"] == pytest.approx(p @ [0, 2, 4])


@pytest.mark.parametrize(
    ("name", "inputs", "problem"),
    [
        ("Hybrid", [["a", "b"]], "toy"),
        ("Hybrid", [3], "toy"),
        ("joint, pairs of tokens", ["a"], "toy"),
        ("joint, pairs of tokens", [["a"]], "toy"),
    ],
)
def test_other_inputs_are_refused(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], node: Node, name: str, inputs: Any, problem: str
) -> None:
    assert problem in node.ask(written[name][0], inputs)["error"]


def test_the_file_is_the_same_each_time_and_its_name_is_no_markup(
    written: dict[str, tuple[Path, CoarseStudent, Tokenizer]], tmp_path: Path
) -> None:
    path, one, tokenizer = written["joint, pairs of tokens"]
    write_html(one, tokenizer, "</script><b>joint, pairs of tokens", tmp_path / "again.html")
    html = path.read_text()
    assert (tmp_path / "again.html").read_text() == html
    assert "<b>" not in html
    assert html.count("</script>") == 3
    assert not re.search(r"https?:|{{|(src|href)=\"(?!data:,)", html.split('<script id="api">')[0])


def test_what_javascript_cannot_do_is_told_first() -> None:
    strange = bert()
    strange.add_tokens([AddedToken("#the", normalized=True)])
    with pytest.raises(ConfigError, match=naming("--html: 2 problems", "'#the'", "bilstm")):
        check_writable(student(head="bilstm", hidden_size=4), strange)
    words = Tokenizer.from_str(word_tokenizer({"[PAD]": 0, "a": 1}))
    with pytest.raises(ConfigError, match=naming("--html: ", "WordPiece")):
        check_writable(student(), words)
    with pytest.raises(ConfigError, match=naming("--html: ", "windows")):
        check_writable(student(window_size=4), bert())
    broken = student()
    broken.encoder.tables()[0].weight.data[3, 1] = float("nan")
    with pytest.raises(ConfigError, match=naming("--html: ", "weights")):
        check_writable(broken, bert())
