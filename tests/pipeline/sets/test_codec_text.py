"""The text of codecs and layers."""

import re

import pytest

from pipeline.errors import ConfigError
from pipeline.sets.codec_text import (
    DISTRIBUTION_CODECS,
    STATE_CODECS,
    VECTOR_CODECS,
    CodecText,
    Kept,
    parse_codec,
    parse_kept,
    parse_recoded,
)


@pytest.mark.parametrize(
    ("text", "codecs", "expected"),
    [
        ("sampled-50", DISTRIBUTION_CODECS, CodecText("sampled", 50)),
        ("sampled-50@2.5", DISTRIBUTION_CODECS, CodecText("sampled", 50, 2.5)),
        ("topk-12", DISTRIBUTION_CODECS, CodecText("topk", 12)),
        ("hidden", DISTRIBUTION_CODECS, CodecText("hidden")),
        ("pca-64", VECTOR_CODECS, CodecText("pca", 64)),
        ("float32", STATE_CODECS, CodecText("float32")),
    ],
)
def test_codecs_are_parsed(text: str, codecs: tuple[str, ...], expected: CodecText) -> None:
    assert parse_codec(text, codecs) == expected


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        *[(text, DISTRIBUTION_CODECS) for text in ("", "topk", "topk-0", "topk-5@2", "dense-3", "topk-50 ", "int8")],
        *[(text, DISTRIBUTION_CODECS) for text in ("sampled-256", "sampled-5@0", "sampled-5@x", "topk-99999999")],
        *[(text, VECTOR_CODECS) for text in ("float32", "pca", "pca--1", "u8")],
    ],
)
def test_other_codecs_are_refused_by_their_text(text: str, codecs: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_codec(text, codecs)


def test_layers_are_parsed() -> None:
    assert parse_kept("states=4,2:pca-64 cls  attention=12 values=all:float32 init=1,2") == (
        Kept("states", (2, 4), "pca-64"),
        Kept("cls", None, "float16"),
        Kept("attention", (12,), "u8"),
        Kept("values", None, "float32"),
        Kept("init", (1, 2)),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "names no signal"),
        ("state=2", "'states'"),
        ("cls states=2 cls=1", "'cls=1'"),
        ("states=2,x", "'2,x'"),
        ("states=", "'states='"),
        ("states=2:u8", "'u8'"),
        ("attention=1:float16", "'float16'"),
        ("states=2:", "''"),
        ("init=1:float32", "'init=1:float32'"),
    ],
)
def test_wrong_layers_are_refused_by_their_part(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        parse_kept(text)


def test_layers_that_a_teacher_lacks_are_refused() -> None:
    assert Kept("cls", None, "int8").numbers(2) == (0, 1, 2)
    assert Kept("attention", None, "u8").numbers(2) == (1, 2)
    for kept in (Kept("states", (1, 3), "int8"), Kept("init", (0, 1))):
        with pytest.raises(ConfigError, match=f"--keep {kept.name}: layer"):
            kept.numbers(2)


def test_recoded_signals_are_parsed() -> None:
    assert parse_recoded("states=pca-64 attention=u8") == {"states": "pca-64", "attention": "u8"}
    assert parse_recoded("topk-50") == {}
    for text in ("states=pca", "init=int8", "states=int8 states=int8", "states", "states=int8 topk-5"):
        with pytest.raises(ValueError, match=r"states|init|topk"):
            parse_recoded(text)
