"""Students and their files for the engine, and what torch answers."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from pipeline.arrays import Floats, Ragged
from pipeline.tasks.target import Target
from pipeline.tasks.task import Bins
from pipeline.tasks.temperature import Calibration
from pipeline.text.text_to_ids import TextReader
from student.data import in_batches
from student.encoders.aligned import AlignedEncoder
from student.encoders.matrices import MatrixEncoder, MatrixProduct
from student.encoders.recurrent import RecurrentEncoder
from student.export.engine_file import write_engine_file
from student.export.html_file import stored_student
from student.model.architecture import sequences
from student.model.student import TaskStudent, TokenLabelStudent
from student.predict.predictor import Predictor
from student.predict.torch_backend import TorchBackend, logits_of_words
from tests.helpers.tokenizers import TOKENS, VARIANTS, expected
from tests.helpers.toy_students import BIGRAMS, student, word_student

LENGTH = 14
SHAPE = {"vocabulary_size": 2 * len(TOKENS) + 10, "max_seq_length": LENGTH, "initializer_range": 0.3}
LIBRARY = Path(__file__).parents[2] / "student/engine/python/distill_student/libdistill_student.so"
# For programs and extensions that are compiled beside a copy of the library.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
LINK = [LIBRARY.name, "-Wl,-rpath,$ORIGIN"]
needs_engine = pytest.mark.skipif(not LIBRARY.exists(), reason="the engine was not built")
PAIRS = [(0, 8), (10, 10), (10, 12), (18, 26), (26, 10)]
LABELS = Target(kind="labels", names=("red", "green", "blue"))
SCORE = Target(kind="score", names=("score",))
RECURRENT = {"embedding": "recurrent", "matrix_size": 0, "vector_size": 22, "bidirectional": False}
BINS = Target(kind="bins", names=("0", "1", "2"), bins=Bins(low=0, high=2, width=1))
HOT, OF_LABELS = Calibration(temperature=(2.5,), num_rows=60), Calibration(temperature=(0.2, 1.0, 3.0), num_rows=60)
PAIR, SPECIAL = {"is_pair": True}, ((4,), (6,), (6, 0))
ALIGNED = {"embedding": "aligned", "pairing": "attention", "matrix_size": 0, "vector_size": 21, "bidirectional": False}
STUDENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "hybrid": ("uncased", {}),
    "hybrid, maxima, bigrams, linear": (
        "cased",
        {**BIGRAMS, "pooling": "sum+max", "head": "linear", "calibration": HOT},
    ),
    "hybrid of 20, one way": ("uncased", {"matrix_size": 20, "vector_size": 37, "bidirectional": False}),
    "cmow of 28": ("no prefix", {"matrix_size": 28, "vector_size": 0}),
    "cbow, windows, plain MLP": (
        "added",
        {**BIGRAMS, "matrix_size": 0, "pooling": "sum+max", "window_size": 3, "head": "plain-mlp", "hidden_size": 21},
    ),
    "windows of matrices, dense": ("another unknown", {"window_size": 4, "head": "dense"}),
    "diffcat, labels": ("uncased with accents", {**PAIR, "target": LABELS, "calibration": OF_LABELS}),
    "compare, maxima, bigrams": (
        "cased without accents",
        {**PAIR, **BIGRAMS, "pairing": "compare", "pooling": "sum+max", "hidden_size": 37},
    ),
    "joint, bins": ("not cleaned", {**PAIR, "pairing": "joint", "special_ids": SPECIAL, "target": BINS}),
    "score, short words": ("short words", {"target": SCORE, "head": "linear"}),
    "aligned": ("uncased", {**PAIR, **ALIGNED}),
    "recurrent": ("uncased", {**RECURRENT, "hidden_size": 21}),
    "recurrent, labels": (
        "uncased with accents",
        {**PAIR, **RECURRENT, "pairing": "diffcat", "hidden_size": 21, "target": LABELS, "calibration": OF_LABELS},
    ),
    "recurrent, joint": ("not cleaned", {**PAIR, **RECURRENT, "pairing": "joint", "special_ids": SPECIAL}),
    "recurrent, pairs, linear": ("cased", {**PAIR, **RECURRENT, "pairing": "compare", "head": "linear"}),
    "aligned, single texts, linear": ("learned", {**ALIGNED, "vector_size": 9, "head": "linear"}),
}
OF_TEXTS = tuple(STUDENTS)
WORDS = {"kind": "words"}
STUDENTS |= {
    "words": ("uncased", {**WORDS, "hidden_size": 21, "calibration": HOT}),
    "words of 20, one way, linear": (
        "cased",
        {**WORDS, "matrix_size": 20, "vector_size": 37, "bidirectional": False, "head": "linear"},
    ),
    "words, cmow of 28, plain MLP": (
        "no prefix",
        {**WORDS, "matrix_size": 28, "vector_size": 0, "initializer_range": 0.05, "head": "plain-mlp"},
    ),
    "words, cbow, dense": ("short words", {**WORDS, "matrix_size": 0, "head": "dense"}),
}
ROWS = [
    ("a b the there", "ab"),
    ("", ""),
    ("The [MASK] ab! é", "the the 中 a"),
    ("a the a the a b the there ab ab ab a a b", "b a"),
    ("\U0001f600 ß[PAD]a", "İ"),
]
ROWS += [("the a " * (n % 9), "ab b " * (n % 5)) for n in range(70)]
# What is written, and how far a level that rounds a head's inputs may be away: a share of the logits' spread.
DTYPES: list[tuple[dict[str, Any], float]] = [
    ({}, 0),
    ({"table_dtype": "float16"}, 0),
    ({"table_dtype": "bfloat16", "head_dtype": "bfloat16"}, 0.02),
    ({"table_dtype": "int8", "head_dtype": "int8"}, 0.05),
]


def inputs(name: str, rows: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """The first texts of rows, for pairs also the second ones, and for labelled words the words of the first ones."""
    first, second = [a for a, _ in rows], [b for _, b in rows]
    one = made(name)[0]
    if isinstance(one, TokenLabelStudent):
        return ([text.split(" ") for text in first],)
    return (first, second) if one.config.is_pair else (first,)


@functools.cache
def made(name: str) -> tuple[Any, Tokenizer]:
    """A student whose weights all matter. Some tokens have no row of their own, some no matrices."""
    variant, changes = STUDENTS[name]
    make = word_student if "kind" in changes else student
    whole = make(**SHAPE | {key: value for key, value in changes.items() if key != "kind"})
    encoder = whole.encoder
    with torch.no_grad():
        layers = [whole.head, *([encoder.norm, encoder.compare] if isinstance(encoder, AlignedEncoder) else [])]
        if isinstance(encoder, RecurrentEncoder):
            layers += [encoder.norm, encoder.gate, encoder.value]
        alone = [encoder.neighbours] if isinstance(encoder, AlignedEncoder) else []
        for parameter in [*alone, *(p for layer in layers for p in layer.parameters())]:
            parameter.add_(0.3 * torch.randn(parameter.shape))
        if isinstance(encoder, MatrixEncoder) and encoder.bigrams is not None:
            encoder.bigrams.set_pairs(torch.tensor(PAIRS))
            encoder.bigrams.take_over(encoder.bigrams.pairs_K2, torch.randn(len(PAIRS), encoder.bigrams.size))
        token_V = torch.arange(SHAPE["vocabulary_size"])
        whole.encoder.neutralise(token_V % 7 == 5)
        for part in encoder.parts() if isinstance(encoder, MatrixEncoder) else []:
            if isinstance(part, MatrixProduct):  # as of tokens that were never trained, but have vectors
                part.table.weight[token_V % 5 == 2] = part.table.weight[encoder.pad_id].clone()
    return whole, VARIANTS[variant]()


def written(name: str, folder: Path, **dtypes: Any) -> Path:
    """The student's file."""
    one, tokenizer = made(name)
    path = folder / f"{name}.distill"
    write(one, tokenizer, folder, path, **dtypes)
    return path


def write(one: TaskStudent, tokenizer: Tokenizer, folder: Path, path: Path, **dtypes: Any) -> None:
    """Writes the file of one student."""
    write_engine_file({one.config.task: (one, folder)}, tokenizer, path, **dtypes)


def by_torch(name: str, rows: Sequence[tuple[str, str]], one: Any = None) -> Floats:
    """The logits of `inputs`; of another student with the same tokenizer if one is given."""
    one, tokenizer = one or made(name)[0], made(name)[1]
    if isinstance(one, TokenLabelStudent):
        return logits_of_words(one, TextReader.of(tokenizer), *inputs(name, rows))
    first, second = [a for a, _ in rows], [b for _, b in rows] if one.config.is_pair else None
    ids = [Ragged.of(part) for part in expected(tokenizer, first, second, LENGTH)]
    parts = sequences(one.config, *ids)
    return in_batches(one.logits, parts, one.config.target.num_logits, torch.device("cpu"))


def torch_predictor(folder: Path) -> Predictor:
    """The student of a run's folder, from its weights and not from the file in it."""
    return Predictor.of(TorchBackend(folder))


def folder_by_torch(predictor: Predictor, *texts: Any) -> Floats:
    """The logits that torch computes for the texts of a folder's student."""
    student, config = predictor.student, predictor.student.config
    parts = sequences(config, *predictor.reader.read(texts[0], texts[1] if texts[1:] else None, config.max_seq_length))
    return in_batches(student.logits, parts, config.target.num_logits, torch.device("cpu"))


def finite(logits: Any) -> Floats:
    """Logits without the infinite ones of words without tokens, so that they can be subtracted."""
    return np.nan_to_num(np.array(logits, np.float32), nan=np.nan, neginf=-9)


def rounded(name: str, path: Path) -> Any:
    """The student with the numbers that a file of it holds."""
    return stored_student(made(name)[0], load_file(path))
