"""``tokenizer.json`` that has the hash it shall have, and a text that it reads."""

from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import load_tokenizer, tokenizer_sha256
from tests.fuzz.files import FIXTURES, written

COVERS = ("pipeline.text.tokenizer", "pipeline.text.safety", "pipeline.text.wordpiece.compatible")
SEEDS = [(FIXTURES / name / "tokenizer.json").read_bytes() for name in ("variants", "run")]


def read(data: bytes) -> None:
    try:
        digest = tokenizer_sha256(data.decode())
    except (ValueError, AttributeError, RecursionError):
        digest = "0" * 64
    reader = TextReader.of(load_tokenizer(written("tokenizer.json", data), digest))
    reader.read(["the soup was good", "[MASK] é"], None, 8)
    reader.tokenize(["the soup"], ["was good"], 8)
