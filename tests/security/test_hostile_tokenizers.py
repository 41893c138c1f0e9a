"""A ``tokenizer.json`` as an enemy writes it: valid, of the right hash, and out to fill the memory or to crash."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pipeline.errors import IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.text import tokenizer as safety
from pipeline.text.tokenizer import growth_problem, load_tokenizer, tokenize, tokenizer_sha256
from tests.helpers.hostile import edit, limited
from tests.helpers.messages import naming

TENFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
BOMB = {"type": "Sequence", "normalizers": [TENFOLD] * 9}  # 11^9: for a letter itself or ten, nine times
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
SPECIAL = {"SpecialToken": {"id": "X", "type_id": 0}}


def written(logit_set: ExampleSet, folder: Path, **parts: Any) -> Path:
    """A copy of the set's tokenizer with other parts."""
    values = json.loads(logit_set.tokenizer_json()) | parts
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return folder / "tokenizer.json"


def load(path: Path) -> Tokenizer:
    return load_tokenizer(path, tokenizer_sha256(path.read_text()))


def template(pieces: int, ids: int) -> dict[str, Any]:
    special = {"X": {"id": "X", "ids": [1] * ids, "tokens": ["a"] * ids}}
    return {"type": "TemplateProcessing", "single": [SPECIAL] * pieces, "pair": [], "special_tokens": special}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"normalizer": BOMB},
            r"normalizer .*2,357,947,691",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 5000}}, r"normalizer .*5,001"),
        ({"post_processor": template(20_000, 20_000)}, "64 special tokens"),
        ({"post_processor": template(1, 65)}, "64 special tokens"),
        (
            {"post_processor": {"type": "Sequence", "processors": [template(2, 1), template(2, 1)]}},
            "64 special tokens",
        ),
        ({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 4 * 10**9}}}, "4,000,000,000"),
        ({"pre_tokenizer": {"type": "Nobody"}}, r"tokenizer\.json: "),
        ({"post_processor": template(0, 1) | {"single": 100}}, r"tokenizer\.json: "),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, r"tokenizer\.json: "),
    ],
)
def test_refused_when_it_is_read(opinion_set: ExampleSet, tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    path = written(opinion_set, tmp_path, **parts)
    with pytest.raises(IntegrityError, match=message):
        load(path)


def test_more_tokens_than_any_tokenizer_has(
    opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety, "MAX_TOKENS", 10)
    with pytest.raises(IntegrityError, match=naming("tokenizer.json: ", "49 tokens", 10)):
        load(written(opinion_set, tmp_path))


def test_more_values_than_are_worth_reading(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" + "1," * 2**21 + "1,1]")
    with pytest.raises(IntegrityError, match=naming("tokenizer.json: ", "2,097,152 values")):
        load_tokenizer(tmp_path / "tokenizer.json", "0" * 64)


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "x"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}},
    ],
    ids=["split", "replace", "trie that leads out of its table"],
)
def test_a_panic_on_a_text_is_a_message(opinion_set: ExampleSet, tmp_path: Path, parts: dict[str, Any]) -> None:
    tokenizer = load(written(opinion_set, tmp_path, **parts))
    with pytest.raises(IntegrityError, match="tokenizer"):
        tokenize(tokenizer, ["a" * 60 + "b"], None, 32)


def test_a_key_that_two_readers_read_differently_is_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    text = opinion_set.tokenizer_json()
    path = tmp_path / "tokenizer.json"
    path.write_text('{"normalizer": null,' + text.strip()[1:])
    with pytest.raises(IntegrityError, match=naming("tokenizer.json: ", "'normalizer'")):
        load_tokenizer(path, tokenizer_sha256(text))


def test_what_real_tokenizers_do_is_allowed(opinion_set: ExampleSet) -> None:
    marks = [{"type": "Replace", "pattern": {"String": "``"}, "content": '"'}] * 2
    pieces = [SPECIAL, SEQUENCE, SPECIAL]
    special = {"X": {"id": "X", "ids": [1], "tokens": ["X"]}}
    pair = [*pieces, SEQUENCE, SPECIAL]
    single = {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special}
    values = {
        "normalizer": {"type": "Sequence", "normalizers": [*marks, {"type": "Prepend", "prepend": "_"}]},
        "post_processor": {
            "type": "Sequence",
            "processors": [{"type": "ByteLevel"}, single | {"special_tokens": special}],
        },
    }
    assert growth_problem(values) is None
    assert growth_problem(json.loads(opinion_set.tokenizer_json())) is None


def test_the_record_must_be_of_this_vocabulary(own_set: ExampleSet) -> None:
    edit(own_set.root, tokenizer__vocabulary_size=2**16)
    with pytest.raises(IntegrityError, match=naming("tokenizer.json: ", "65,536")):
        ExampleSet.open(own_set.root).tokenizer_json()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "train-student"])
def test_a_bomb_ends_with_a_message(own_set: ExampleSet, tmp_path: Path, command: str) -> None:
    path = written(own_set, own_set.root, normalizer=BOMB)
    edit(own_set.root, tokenizer__sha256=tokenizer_sha256(path.read_text()))
    arguments = (
        ["--set", own_set.root, "--output-dir", tmp_path / "run"] if command == "train-student" else [own_set.root]
    )
    assert "normalizer" in limited(command, *arguments)
