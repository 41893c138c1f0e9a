import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from typer.testing import CliRunner

import pipeline.sharing.push
from distill.commands import app
from pipeline.errors import ConfigError, DataError, IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.query.catalog import open_catalog
from pipeline.sets.codecs.vectors import BASIS_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, changed, read_set_record, write_set_record
from pipeline.sharing.pull import FOLDER
from pipeline.sharing.push import JOURNAL, _require_empty
from pipeline.sharing.remote_folder import open_place
from tests.helpers.damage import damage
from tests.helpers.messages import naming
from tests.helpers.places import contents, edit_record, fetch, objects, replace, send
from tests.helpers.rewritten_shards import rewrite_logit


def inodes(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (root / "examples").iterdir()}


def test_what_a_pull_left_that_was_killed_at_its_very_end_goes(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    fetch(str(tmp_path / "there"), tmp_path / "store")
    (tmp_path / "store" / FOLDER / ".opinion.old").mkdir(parents=True)
    (tmp_path / "store" / FOLDER / ".opinion.lock").touch()
    fetch(str(tmp_path / "there"), tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["opinion"]


def test_a_set_comes_out_as_it_went_in(opinion_set: ExampleSet, place: str, tmp_path: Path) -> None:
    sent = send(opinion_set.root, place)
    assert set(sent.sent) == contents(opinion_set.root).keys() - {FILE_NAME}
    assert objects(place) == contents(opinion_set.root)
    pulled = fetch(place, tmp_path / "store")
    assert pulled.root == tmp_path / "store" / "opinion"
    assert contents(tmp_path / "store") == {f"opinion/{n}": data for n, data in contents(opinion_set.root).items()}
    assert pulled.record == opinion_set.record
    with open_catalog(tmp_path / "store") as connection:
        assert connection.execute("select count(*) from opinion").fetchone() == (136,)


def test_nothing_travels_twice(opinion_set: ExampleSet, place: str, tmp_path: Path) -> None:
    send(opinion_set.root, place)
    before = objects(place)
    again = send(opinion_set.root, place)
    assert (again.sent, set(again.kept)) == ((), before.keys() - {FILE_NAME})
    assert objects(place) == before
    assert fetch(place, tmp_path).fetched
    assert fetch(place, tmp_path).fetched == ()


def test_only_what_was_changed_travels(own_set: ExampleSet, place: str, tmp_path: Path) -> None:
    send(own_set.root, place)
    fetch(place, tmp_path / "store")
    old = inodes(tmp_path / "store" / "opinion")
    path = rewrite_logit(own_set)
    assert send(own_set.root, place).sent == ("README.md", path)  # the card contains the bytes
    assert objects(place) == contents(own_set.root)
    assert fetch(place, tmp_path / "store").fetched == (path, TOKENIZER_FILE)
    assert contents(tmp_path / "store" / "opinion") == contents(own_set.root)
    new = inodes(tmp_path / "store" / "opinion")
    assert {name for name in new if new[name] != old[name]} == {Path(path).name}  # the others are hard links


def test_a_push_whose_transport_fails_leaves_no_set_and_goes_on(
    opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "there")
    monkeypatch.setattr(pipeline.sharing.push, "SMALL_BYTES", 0)  # only the journal records what has arrived
    fail_for(monkeypatch, "train-00002")
    with pytest.raises(DataError, match=naming("there", "the line is dead")):
        send(opinion_set.root, place)
    arrived = objects(place).keys()
    assert FILE_NAME not in arrived
    with pytest.raises(DataError, match=naming("there: ")):
        fetch(place, tmp_path / "store")
    fail_for(monkeypatch, "nothing")
    again = send(opinion_set.root, place)
    assert set(again.kept) == arrived - {JOURNAL}
    assert "examples/train-00002-of-00004.parquet" in again.sent
    assert objects(place) == contents(opinion_set.root)


def test_the_old_set_stays_until_a_file_of_it_must_go(
    own_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "there")
    send(own_set.root, place)
    old = objects(place)[FILE_NAME]
    (own_set.root / "README.md").write_text("a card of one's own")
    fail_for(monkeypatch, "README")
    with pytest.raises(DataError, match=naming("there/README.md: ", "the line is dead")):
        send(own_set.root, place)
    assert objects(place)[FILE_NAME] == old  # the card is no part of what the record answers for
    path = rewrite_logit(own_set)
    fail_for(monkeypatch, Path(path).name)
    with pytest.raises(DataError, match=naming("there/examples/train-00001-of-00004.parquet: ", "the line is dead")):
        send(own_set.root, place)
    assert FILE_NAME not in objects(place)
    monkeypatch.undo()
    send(own_set.root, place)
    assert objects(place) == contents(own_set.root)


def test_a_failed_pull_leaves_nothing_usable_and_goes_on(
    opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    open_file = open_failing(monkeypatch, "train-00002")
    with pytest.raises(DataError, match=naming("there: ", "the line is dead")):
        fetch(str(tmp_path / "there"), tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").iterdir()] == [FOLDER]
    with open_catalog(tmp_path / "store") as connection:
        assert connection.execute("select count(*) from sets").fetchone() == (0,)
    staged = contents(tmp_path / "store" / FOLDER / "opinion").keys()
    monkeypatch.setattr(*open_file)
    pulled = fetch(str(tmp_path / "there"), tmp_path / "store")
    shards = {shard.path for shard in opinion_set.record.shards}
    assert set(pulled.fetched) - {TOKENIZER_FILE} == shards - staged
    assert [path.name for path in (tmp_path / "store").iterdir() if path.is_dir()] == ["opinion"]


def fail_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lets no file of that name be copied to a folder."""

    def failing(source: Path, target: Path) -> None:
        if name in str(source):
            raise OSError("the line is dead")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(shutil, "copyfile", failing)


def open_failing(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Any, str, Any]:
    """Lets no file of that name be opened at a place; gives what puts it right again."""
    from fsspec.implementations.local import LocalFileSystem

    usual = LocalFileSystem.open

    def failing(self: Any, path: str, *more: Any, **options: Any) -> Any:
        if name in path:
            raise OSError("the line is dead")
        return usual(self, path, *more, **options)

    monkeypatch.setattr(LocalFileSystem, "open", failing)
    return LocalFileSystem, "open", usual


def test_another_set_is_replaced_only_on_demand(
    opinion_set: ExampleSet, augmented_set: ExampleSet, place: str, tmp_path: Path
) -> None:
    send(augmented_set.root, place)  # it has more files
    before = objects(place)
    with pytest.raises(ConfigError, match=naming("opinion: ", "'opinion-mask-pos'", "--replace")):
        send(opinion_set.root, place)
    assert objects(place) == before
    fetch(place, tmp_path / "store", name="opinion")
    send(opinion_set.root, place, replace=True)
    assert objects(place) == contents(opinion_set.root)
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "--name", "--replace")):
        fetch(place, tmp_path / "store")
    assert ExampleSet.open(tmp_path / "store" / "opinion").record == augmented_set.record
    fetch(place, tmp_path / "store", replace=True)
    assert contents(tmp_path / "store" / "opinion") == contents(opinion_set.root)


def test_an_unreadable_set_is_replaced_only_on_demand(opinion_set: ExampleSet, tmp_path: Path) -> None:
    place = tmp_path / "there"
    place.mkdir()
    (place / FILE_NAME).write_text("{")
    with pytest.raises(IntegrityError, match=r"there/distill\.json: "):
        send(opinion_set.root, str(place))
    send(opinion_set.root, str(place), replace=True)
    assert contents(place) == contents(opinion_set.root)
    (tmp_path / "store" / "opinion").mkdir(parents=True)
    (tmp_path / "store" / "opinion" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "--name")):
        fetch(str(place), tmp_path / "store", replace=True)
    assert (tmp_path / "store" / "opinion" / "notes.txt").read_text() == "mine"


def test_leftovers_of_another_sets_pull_do_not_stay(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    stray = tmp_path / "store" / FOLDER / "opinion" / "examples" / "train-00000-of-00009.parquet"
    stray.parent.mkdir(parents=True)
    shutil.copyfile(opinion_set.root / opinion_set.record.shards[0].path, stray)
    fetch(str(tmp_path / "there"), tmp_path / "store")
    assert contents(tmp_path / "store" / "opinion") == contents(opinion_set.root)


def test_a_set_that_was_never_verified_is_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    edit_record(str(tmp_path / "there"), lambda m: m.update(state="complete"))
    with pytest.raises(IntegrityError, match=naming("there: ", "'complete'")):
        fetch(str(tmp_path / "there"), tmp_path / "store")


def test_what_never_held_a_set_is_left_alone(opinion_set: ExampleSet, place: str, tmp_path: Path) -> None:
    replace(place, "README.md", b"mine")
    replace(place, "examples/mine.py", b"mine, too")
    with pytest.raises(ConfigError, match=naming("README.md")):
        send(opinion_set.root, place, replace=True)
    assert objects(place) == {"README.md": b"mine", "examples/mine.py": b"mine, too"}


def test_files_in_the_folders_of_layers_are_left_alone(opinion_set: ExampleSet, tmp_path: Path) -> None:
    place = open_place(f"file://{tmp_path}/there")
    place.write("states/mine.npy", b"mine")
    with pytest.raises(ConfigError, match=naming("there: ", "states/mine.npy")):
        _require_empty(place, opinion_set.record, ["README.md", "examples/x.parquet", "states/x.parquet"])


def test_a_push_killed_at_its_end_removes_what_is_obsolete(opinion_set: ExampleSet, place: str, tmp_path: Path) -> None:
    send(opinion_set.root, place)
    stale = "examples/train-00000-of-00001.parquet"
    replace(place, stale, b"of the set before")
    replace(place, "examples/mine.parquet", b"of nobody")
    replace(place, JOURNAL, json.dumps({"arrived": {}, "obsolete": [stale]}).encode())
    send(opinion_set.root, place)
    assert objects(place).keys() == {*contents(opinion_set.root), "examples/mine.parquet"}


@pytest.mark.parametrize("journal", [b"[]", b"{", b'{"arrived": 1}'])
def test_a_journal_that_cannot_be_read_tells_of_nothing(
    opinion_set: ExampleSet, place: str, tmp_path: Path, journal: bytes
) -> None:
    replace(place, JOURNAL, journal)
    send(opinion_set.root, place)
    assert objects(place) == contents(opinion_set.root)


def test_two_pulls_of_one_name_do_not_meet(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    (tmp_path / "store" / FOLDER).mkdir(parents=True)
    with (
        FileLock(tmp_path / "store" / FOLDER / ".opinion.lock"),
        pytest.raises(DataError, match=naming("store/opinion: ", "--name")),
    ):
        fetch(str(tmp_path / "there"), tmp_path / "store")
    fetch(str(tmp_path / "there"), tmp_path / "store")
    (tmp_path / "store" / "opinion" / TOKENIZER_FILE).unlink()
    fetch(str(tmp_path / "there"), tmp_path / "store")
    assert contents(tmp_path / "store") == {f"opinion/{k}": v for k, v in contents(opinion_set.root).items()}


def test_a_card_is_never_anybody_elses(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    replace(str(tmp_path / "there"), "README.md", b"<script>alert(1)</script>")
    fetch(str(tmp_path / "there"), tmp_path / "store")
    assert contents(tmp_path / "store" / "opinion") == contents(opinion_set.root)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: write_set_record(root, changed(read_set_record(root), state="complete")), "'complete'"),
        (lambda root: (root / "README.md").unlink(), naming("README.md: ", "distill verify SET")),
        (lambda root: os.truncate(root / "examples/train-00000-of-00004.parquet", 9), "9 bytes"),
    ],
)
def test_only_a_sound_set_is_pushed(
    own_set: ExampleSet, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(own_set.root)
    with pytest.raises(IntegrityError, match=message):
        send(own_set.root, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_texts_of_doubtful_licence_are_pushed_with_a_warning(
    own_set: ExampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(own_set.root, str(tmp_path / "open"))
    assert "warning: " not in capsys.readouterr().err  # the demo's texts are CC0
    assert own_set.record.task
    task = own_set.record.task.model_copy(update={"licence": "CC BY-NC 4.0, research only"})
    write_set_record(own_set.root, own_set.record.model_copy(update={"task": task}))
    send(own_set.root, str(tmp_path / "doubtful"))
    assert "CC BY-NC 4.0, research only" in " ".join(capsys.readouterr().err.split())
    send(own_set.root, str(tmp_path / "without"), without_text=True)
    assert "warning: " not in capsys.readouterr().err


def test_commands_print_what_was_done(opinion_set: ExampleSet, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    first = json.loads(run("push", opinion_set.root, tmp_path / "there", "--json").stdout)
    second = json.loads(run("push", opinion_set.root, tmp_path / "there", "--json").stdout)
    assert sorted(first["sent"]) == sorted(second["kept"]) == sorted(contents(opinion_set.root).keys() - {FILE_NAME})
    pulled = json.loads(run("pull", tmp_path / "there", "--store", tmp_path, "--name", "mine", "--json").stdout)
    assert (pulled["root"], pulled["state"]) == (str(tmp_path / "mine"), "verified")
    assert ExampleSet.open(tmp_path / "mine").read("train", ("logits",)).num_rows == 96
    verified = json.loads(run("verify", "mine", "--store", tmp_path, "--json").stdout)
    assert verified["fingerprint"] == opinion_set.record.fingerprint
    assert run("describe", "mine", "--store", tmp_path).stdout == (opinion_set.root / "README.md").read_text()
    (tmp_path / "mine" / "README.md").unlink()
    run("verify", "mine", "--store", tmp_path)
    assert (tmp_path / "mine" / "README.md").read_text() == (opinion_set.root / "README.md").read_text()
    os.truncate(tmp_path / "mine" / "examples" / "train-00000-of-00004.parquet", 9)
    assert run("verify", "mine", "--store", tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gopher://x/y", "gopher://x/y: "),
        ("hf://models/a/b", "hf://datasets/OWNER/NAME"),
        ("/nowhere/at/all", "distill.json"),
    ],
)
def test_no_such_place_is_one_message(url: str, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["pull", url, "--store", str(tmp_path)])
    assert (result.exit_code, result.stderr.startswith("error: ")) == (2, True)
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("state", ["staged", "complete"])
def test_a_set_that_is_not_finished_is_not_verified(own_set: ExampleSet, state: str) -> None:
    assert CliRunner().invoke(app, ["verify", str(own_set.root)]).exit_code == 0
    write_set_record(own_set.root, own_set.record.model_copy(update={"state": state}))
    result = CliRunner().invoke(app, ["verify", str(own_set.root)])
    assert result.exit_code == 2
    assert f"{own_set.record.command}" in " ".join(result.stderr.split())


def test_verify_tells_what_is_damaged_and_what_mends_it(own_set: ExampleSet) -> None:
    shard = own_set.record.shards[0].path
    damage(own_set.root / shard)
    result = CliRunner().invoke(app, ["verify", str(own_set.root)])
    told = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert f"{shard}: " in told
    assert told.endswith(own_set.record.command)


def test_a_damaged_tokenizer_is_not_sent_and_comes_back(own_set: ExampleSet, place: str, tmp_path: Path) -> None:
    send(own_set.root, place)
    pulled = fetch(place, tmp_path / "store")
    damage(pulled.root / TOKENIZER_FILE)
    with pytest.raises(IntegrityError, match=r"tokenizer\.json: "):
        send(pulled.root, str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert fetch(place, tmp_path / "store").fetched == (TOKENIZER_FILE,)
    assert contents(pulled.root) == contents(own_set.root)


def test_a_damaged_basis_is_not_sent_and_comes_back(vector_store: Path, place: str, tmp_path: Path) -> None:
    send(vector_store / "pca", place)
    pulled = fetch(place, tmp_path / "store")
    damage(pulled.root / BASIS_FILE)
    with pytest.raises(IntegrityError, match=naming("pca/basis.safetensors: ", "SHA-256")):
        send(pulled.root, str(tmp_path / "elsewhere"))
    assert set(fetch(place, tmp_path / "store").fetched) == {BASIS_FILE, TOKENIZER_FILE}
    assert contents(pulled.root) == contents(vector_store / "pca")
