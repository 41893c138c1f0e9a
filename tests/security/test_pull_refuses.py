"""What is refused when a set is pulled: damaged, missing and foreign files, and records that lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sharing.pull import FOLDER
from tests.helpers.messages import naming
from tests.helpers.places import contents, edit_record, fetch, objects, remove, replace, send


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flipped, naming("train-00000-of-00004.parquet: ", "SHA-256")),
        (lambda data: data[:-1], r"train-00000-of-00004.parquet: .*bytes"),
        (lambda data: data + b"x", r"train-00000-of-00004.parquet: .*bytes"),
    ],
)
def test_a_damaged_object_is_refused(
    opinion_set: ExampleSet, place: str, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    send(opinion_set.root, place)
    path = "examples/train-00000-of-00004.parquet"
    replace(place, path, damage(objects(place)[path]))
    with pytest.raises(IntegrityError, match=message):
        fetch(place, tmp_path / "store")
    assert not (tmp_path / "store" / "opinion").exists()
    assert path not in contents(tmp_path / "store" / FOLDER / "opinion")


def test_a_missing_object_and_a_foreign_tokenizer_are_refused(
    opinion_set: ExampleSet, roles_set: ExampleSet, place: str, tmp_path: Path
) -> None:
    send(opinion_set.root, place)
    whole = objects(place)
    replace(place, TOKENIZER_FILE, whole[TOKENIZER_FILE].replace(b'"the"', b'"THE"'))
    with pytest.raises(IntegrityError, match=TOKENIZER_FILE):
        fetch(place, tmp_path / "store")
    remove(place, TOKENIZER_FILE)
    with pytest.raises(IntegrityError, match=naming(f"{TOKENIZER_FILE}: ")):
        fetch(place, tmp_path / "store")
    replace(place, TOKENIZER_FILE, whole[TOKENIZER_FILE])
    remove(place, opinion_set.record.shards[0].path)
    with pytest.raises(IntegrityError, match=naming("examples/validation-00000-of-00002.parquet: ", "distill.json")):
        fetch(place, tmp_path / "store")
    assert not (tmp_path / "store" / "opinion").exists()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (
            lambda m: m["shards"][0].update(bytes=m["shards"][0]["bytes"] + 1),
            r"validation-00000-of-00002\.parquet: .*bytes",
        ),
        (
            lambda m: m["shards"][0].update(bytes=None),
            r"validation-00000-of-00002\.parquet: .*bytes",
        ),
        (lambda m: m["shards"][0].update(rows=7), naming("20 rows", "7")),
        (lambda m: m["shards"][0].update(sha256="0" * 64), "SHA-256"),
        (lambda m: m["shards"][0].update(sha256=None), "SHA-256"),
        (lambda m: m["shards"][0].update(split="../up"), r"shards\.0\.split"),
        (lambda m: m["splits"]["train"].update(rows=97), "0 to 97"),
        (lambda m: m["splits"]["train"].update(rows_sha256="0" * 64), "texts and gold"),
        (lambda m: m.update(name="../../opinion"), "name"),
        (lambda m: m.update(name=".hidden"), "name"),
        (lambda m: m.update(state="staged"), "'staged'"),
        (lambda m: m.update(shards=[]), "shards: "),
        (lambda m: m.update(settings={}), "fingerprint"),
        (lambda m: m.update(max_seq_length=2), "2 tokens"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    opinion_set: ExampleSet, tmp_path: Path, lie: Callable[[dict[str, Any]], object], message: str
) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    edit_record(str(tmp_path / "there"), lie)
    with pytest.raises(IntegrityError, match=message):
        fetch(str(tmp_path / "there"), tmp_path / "store")
    assert not (tmp_path / "store" / "opinion").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"there", "store"}


def test_sets_of_tokens_travel_too(token_store: Path, tmp_path: Path) -> None:
    for name in ("hidden", "sampled"):
        send(token_store / name, str(tmp_path / "there" / name))
        fetch(str(tmp_path / "there" / name), tmp_path / "store")
        assert contents(tmp_path / "store" / name) == contents(token_store / name)
    decoder = tmp_path / "there" / "hidden" / "decoder.safetensors"
    decoder.write_bytes(flipped(decoder.read_bytes()))
    with pytest.raises(IntegrityError, match=r"decoder\.safetensors: "):
        fetch(str(tmp_path / "there" / "hidden"), tmp_path / "other")
    assert not (tmp_path / "other" / "hidden").exists()
