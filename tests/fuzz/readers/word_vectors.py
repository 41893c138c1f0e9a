"""Word vectors in text, gzipped or not."""

import gzip

from pipeline.text.word_vectors import read_word_vectors
from teacher.augment.candidates import read_vectors
from tests.fuzz.files import of_a_kind, seeds, written

COVERS = ("pipeline.text.word_vectors", "teacher.augment.candidates")
KINDS = (".txt", ".txt.gz")
TEXT = b"2 3\nthe 0.1 0.2 -3\nof it 1e-3 0 1\nzero 0 0 0\n"
SEEDS = seeds(KINDS, {".txt": [TEXT, TEXT[4:]], ".txt.gz": [gzip.compress(TEXT, mtime=0)]})


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    path = written(f"vectors{kind}", content)
    read_vectors(path).neighbours(["the", "of"], 2)
    read_word_vectors(path, "--init", wanted={"the", "of it"})
