"""``distill.json`` as an enemy writes it: refused before any of it is used."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import IntegrityError
from pipeline.record_file import MAX_RECORD_BYTES, read_record
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, parse_set_record, read_set_record
from tests.helpers.commands import invoke
from tests.helpers.hostile import edit, limited
from tests.helpers.messages import naming

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J"
HASH = "0" * 64


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "../up", "name: "),
        ("name", "a" * 5000, "name: "),
        ("name", "a\x00b", "name: "),
        ("shards__0__split", "a" * 5000, r"shards\.0\.split"),
        ("shards__0__rows", 10**18, r"shards\.0\.rows: "),
        ("shards__0__start", -1, r"shards\.0\.start: "),
        ("shards__0__start", 10**6, "row 1,000,000"),
        ("shards", [], "shards: "),
        ("splits", {}, "splits: "),
        ("splits", {"../x": {"rows": 1, "expected_rows": None, "rows_sha256": HASH}}, r"splits\.\.\./x"),
        ("scores", {"train": {"<b>|x": 1.0}}, r"scores\.train"),
        ("teacher__num_parameters", 10**30, r"teacher\.num_parameters: "),
        ("teacher__weights_sha256", "`<b>", r"teacher\.weights_sha256: "),
        ("created", "yesterday", "created: "),
        ("created", "2026-13-01T00:00:00+00:00", "created: "),
        ("tokenizer__vocabulary_size", 10**9, r"tokenizer\.vocabulary_size: "),
        ("tokenizer__pad_id", 10**6, "pad_id 1000000"),
        ("max_seq_length", 32.5, naming("max_seq_length: ", "32.5")),
        ("signals__logits__target__kind", "bins", "'bins'"),
        ("signals__logits__target__kind", "score", "score"),
        (
            "signals__logits__target__bins",
            {"low": 0, "high": 1, "width": 1e-300},
            naming("1e-300", "bins"),
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(own_set: ExampleSet, key: str, value: Any, message: str) -> None:
    edit(own_set.root, **{key: value})
    with pytest.raises(IntegrityError, match=message):
        read_set_record(own_set.root)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"max_seq_length": 32', '"max_seq_length": NaN', r"distill.json: .*NaN"),
        ('"max_seq_length": 32', '"max_seq_length": 1e999', "1e999"),
        ('"max_seq_length": 32', '"max_seq_length": ' + "9" * 10_000, r"distill\.json: "),
        ('"state": "verified"', '"state": "staged", "state": "verified"', "'state'"),
        ('"precision": "fp32"', '"precision": "\\ud800"', "surrogate"),
        ('"settings": {', '"settings": {"q":' + "[" * 100_000 + "]" * 100_000 + ",", "nested"),
    ],
)
def test_json_with_two_readings_is_refused(own_set: ExampleSet, old: str, new: str, message: str) -> None:
    text = json.dumps(read_record(own_set.root / FILE_NAME), indent=2)
    assert text.count(old) >= 1
    with pytest.raises(IntegrityError, match=message):
        parse_set_record(text.replace(old, new, 1).encode(), "distill.json")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
def test_another_encoding_is_refused(own_set: ExampleSet, encoding: str) -> None:
    with pytest.raises(IntegrityError, match=r"distill\.json: "):
        parse_set_record((own_set.root / FILE_NAME).read_text().encode(encoding), "distill.json")


def test_a_message_is_short_however_long_the_value(own_set: ExampleSet) -> None:
    edit(own_set.root, state="x" * 10**6, notes=[1] * 1000, precision=[])
    with pytest.raises(IntegrityError, match=naming("1,002 problems", "952")) as caught:
        read_set_record(own_set.root)
    assert len(str(caught.value)) < 20_000


@pytest.mark.parametrize("key", ["command", "source", "teacher__name", "task__licence", "notes__0"])
def test_control_characters_reach_no_terminal_and_no_card(own_set: ExampleSet, key: str) -> None:
    edit(own_set.root, notes=["a note"])
    edit(own_set.root, **{key: ESCAPES}, state="verified")
    store = own_set.root.parent
    results = [
        invoke("describe", own_set.root),
        invoke("pull", own_set.root, "--store", store.parent / "pulled"),
        invoke("sql", "select * from sets", "--store", store),
        invoke("sql", "select * from sets", "--store", store, "--json"),
    ]
    assert [result.exit_code for result in results] == [0] * 4
    text = "".join(result.output for result in results) + card_text(read_set_record(own_set.root))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert "\\x1b]0;owned" in results[0].stdout


def test_an_unfinished_sets_command_is_shown_as_text(own_set: ExampleSet) -> None:
    edit(own_set.root, state="staged", command=ESCAPES)
    result = invoke("verify", own_set.root)
    assert result.exit_code == 2
    assert "\x1b" not in result.output


def test_a_card_has_no_markup_of_strangers(own_set: ExampleSet) -> None:
    values = {
        "teacher__name": "<script>",
        "signals__logits__target__names": ["`</a>|", "no"],
        "source": "![x](http://spy)",
    }
    edit(own_set.root, **values)
    text = card_text(read_set_record(own_set.root))
    body = text.split("---\n", 2)[2]
    assert "<script>" not in body
    assert "</a>" not in body
    assert "![x](" not in body
    assert "`'&lt;/a&gt;\\|`" in body


@pytest.mark.parametrize("command", ["verify", "describe", "pull", "sql"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "nowhere", "folder"])
def test_a_manifest_that_is_no_file_is_refused(own_set: ExampleSet, kind: str, command: str) -> None:
    path = own_set.root / FILE_NAME
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else "/nowhere")
    store = own_set.root.parent
    arguments = ["select * from sets", "--store", store] if command == "sql" else [own_set.root]
    result = invoke(command, *arguments)
    if command == "sql":  # one bad folder is no reason to refuse the others
        assert result.exit_code == 0
        assert "opinion" not in result.stdout
    else:
        assert result.exit_code == 2
        assert "error:" in result.stderr


@pytest.mark.parametrize("name", ["catalog.duckdb", "augmented"])
def test_a_pulled_set_cannot_take_a_name_of_the_store(own_set: ExampleSet, tmp_path: Path, name: str) -> None:
    edit(own_set.root, name=name)
    result = invoke("pull", own_set.root, "--store", tmp_path / "s", "--replace")
    assert result.exit_code == 2
    assert "--name" in result.stderr
    assert not (tmp_path / "s" / name).exists()


def test_replace_does_not_remove_what_is_no_set(own_set: ExampleSet, tmp_path: Path) -> None:
    precious = tmp_path / "s" / "opinion" / "thesis.tex"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    assert invoke("pull", own_set.root, "--store", tmp_path / "s", "--replace").exit_code == 2
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize("name", ["label=1", "*", "x'; drop view y --", "a\nb", os.fsdecode(b"\xff")])
def test_a_folder_whose_name_duckdb_would_read_is_left_out(own_set: ExampleSet, store: Path, name: str) -> None:
    shelf = own_set.root.parent
    own_set.root.rename(shelf / name)
    shutil.copytree(store / "roles", shelf / "roles")
    result = invoke("sql", 'select "set" from sets', "--store", shelf, "--json")
    assert json.loads(result.stdout) == [{"set": "roles"}]
    assert "rename it" in result.stderr.lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    "filler",
    [
        '"settings": {' + ",".join(f'"k{number}": null' for number in range(1_000_000)) + "}",
        '"shards": [' + "1," * 8_000_000 + "1]",
        '"state": "' + "x" * 16_000_000 + '"',
        '"notes": "' + "x" * MAX_RECORD_BYTES + '"',
    ],
    ids=["settings", "shards", "state", "too large"],
)
def test_a_huge_manifest_is_refused_in_little_memory(own_set: ExampleSet, filler: str) -> None:
    values, key = read_record(own_set.root / FILE_NAME), filler.partition(":")[0]
    del values[json.loads(key)]
    (own_set.root / FILE_NAME).write_text(json.dumps(values)[:-1] + f", {filler}}}")
    assert FILE_NAME in limited("verify", own_set.root)
