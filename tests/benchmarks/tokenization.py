"""Sentences to ids and to vectors: the library, compiled code, and model2vec where it is installed.

The text is that of Python's own documentation strings, line by line; half of it teaches a WordPiece tokenizer.
"""

import ast
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from pipeline.text.text_to_ids import TextReader
from student.settings import TrainSettings
from tests.benchmarks.random_student import random_student

SENTENCES, VOCABULARY, MAX_SEQ_LENGTH, PART = 20_000, 30_000, 128, 512
PROGRAMS = "*.py"  # of Python's own library


def ids() -> dict[str, Callable[[], object]]:
    """Sentences to ids, by two threads and by one."""
    sentences = lines_of_documentation()
    tokenizer = taught_tokenizer(sentences)
    tokenizer.enable_truncation(MAX_SEQ_LENGTH)
    reader = TextReader.of(Tokenizer.from_str(tokenizer.to_str()))
    ways: dict[str, Callable[[], object]] = {
        "encode_batch_fast": lambda: tokenizer.encode_batch_fast(sentences),
        "encode_batch": lambda: tokenizer.encode_batch(sentences),
        "TextReader": lambda: reader.read(sentences, None, MAX_SEQ_LENGTH),
    }
    return {f"{name}, {n} threads": with_threads(n, way) for n in (2, 1) for name, way in ways.items()}


def vectors() -> dict[str, Callable[[], object]]:
    """Sentences to vectors, by two threads; the student's, of 1200 numbers, in parts that stay in the caches."""
    sentences = lines_of_documentation()
    tokenizer = taught_tokenizer(sentences)
    reader, student = (
        TextReader.of(tokenizer),
        random_student(TrainSettings.from_flags(), tokenizer.get_vocab_size()).eval(),
    )
    student.encoder.lay_out()

    def encode() -> None:
        (read,) = reader.read(sentences, None, MAX_SEQ_LENGTH)
        with torch.inference_mode():
            for start in range(0, len(read), PART):
                part = read.take(range(start, min(start + PART, len(read))))
                student.encoder.reduce(torch.from_numpy(part.flat), torch.from_numpy(part.offsets))

    ways = {"TextReader and a Hybrid student": with_threads(2, encode)}
    if importlib.util.find_spec("model2vec") is None:
        return ways
    from model2vec import StaticModel

    random = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 256)).astype(np.float32)
    static = StaticModel(random, Tokenizer.from_str(tokenizer.to_str()))
    return {"model2vec.encode": with_threads(2, lambda: static.encode(sentences))} | ways


def with_threads(threads: int, run: Callable[[], object]) -> Callable[[], object]:
    """What runs on so many threads."""

    def timed() -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = str(threads > 1).lower()  # the library reads it at every call
        torch.set_num_threads(threads)
        run()

    return timed


def lines_of_documentation() -> list[str]:
    """Lines of Python's own documentation strings, drawn at random."""
    return list(_drawn_lines())


@cache  # reading all of Python's library takes ten seconds
def _drawn_lines() -> tuple[str, ...]:
    folder = Path(sysconfig.get_path("stdlib"))
    lines = [line for path in sorted(folder.rglob(PROGRAMS)) if "test" not in path.parts for line in _doc_lines(path)]
    random = np.random.default_rng(0)
    return tuple(lines[k] for k in random.choice(len(lines), min(SENTENCES, len(lines)), replace=False))


def _doc_lines(path: Path) -> Iterator[str]:
    if "site-packages" in path.parts or "lib2to3" in path.parts:
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from filter(None, map(str.strip, (ast.get_docstring(node) or "").splitlines()))


def taught_tokenizer(sentences: list[str]) -> Tokenizer:
    """A WordPiece tokenizer that half of the sentences have taught."""
    teacher = BertWordPieceTokenizer()
    teacher.train_from_iterator(sentences[::2], VOCABULARY, min_frequency=1, show_progress=False)
    return Tokenizer.from_str(teacher.to_str())
