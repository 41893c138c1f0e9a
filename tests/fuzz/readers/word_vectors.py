"""Word vectors in text, gzipped or not."""

import gzip

from teacher.augment.word_vectors import read_vectors
from tests.fuzz.files import of_a_kind, seeds, written

COVERS = ("teacher.augment.word_vectors",)
KINDS = (".txt", ".txt.gz")
TEXT = b"2 3\nthe 0.1 0.2 -3\nof it 1e-3 0 1\nzero 0 0 0\n"
SEEDS = seeds(KINDS, {".txt": [TEXT, TEXT[4:]], ".txt.gz": [gzip.compress(TEXT, mtime=0)]})


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    read_vectors(written(f"vectors{kind}", content)).neighbours(["the", "of"], 2)
