"""``tokenizer.json`` that has the hash it shall have, and a text that it reads."""

from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import load_tokenizer, tokenizer_sha256
from tests.fuzz.files import written

COVERS = ("pipeline.text.tokenizer", "pipeline.text.tokenizer", "pipeline.text.wordpiece.compiled_wordpiece")


def seed(model: Any, **parts: Any) -> bytes:
    """A ``tokenizer.json`` of few tokens, without the spaces: small files are changed to more effect."""
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    text: str = tokenizer.to_str()
    return text.encode()


WORDS = {"[UNK]": 0, "[CLS]": 1, "the": 2, "was": 3, "so": 4, "##up": 5}
SEEDS = [
    seed(
        models.WordPiece(WORDS, unk_token="[UNK]"),  # noqa: S106
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        post_processor=processors.TemplateProcessing("[CLS] $A", "[CLS] $A $B", [("[CLS]", 1)]),
    ),
    seed(
        models.BPE({"t": 0, "h": 1, "e": 2, "th": 3, "the": 4, "Ġ": 5}, [("t", "h"), ("th", "e")]),
        pre_tokenizer=pre_tokenizers.ByteLevel(),
        post_processor=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
    ),
    seed(
        models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("s", -2.0)], unk_id=0, byte_fallback=False),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.NFKC()]),
        pre_tokenizer=pre_tokenizers.Metaspace(),
    ),
]


def read(data: bytes) -> None:
    try:
        digest = tokenizer_sha256(data.decode())
    except (ValueError, AttributeError, RecursionError):
        digest = "0" * 64
    reader = TextReader.of(load_tokenizer(written("tokenizer.json", data), digest))
    reader.read(["the soup was good", "[MASK] é"], None, 8)
    reader.tokenize(["the soup"], ["was good"], 8)
