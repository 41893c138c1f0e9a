"""One's own texts beside the logits of a set without: which rows match, and what the joined set is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from distill.commands import app
from pipeline import console
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError
from pipeline.query.catalog import open_catalog
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import changed, read_set_record, write_set_record
from pipeline.sets.record_parts import Version
from pipeline.sets.verify import verify_shards
from pipeline.sharing.join import Joined
from student.data import load_examples
from teacher.dumps import dump
from tests.helpers.commands import invoke
from tests.helpers.damage import with_other_bytes
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.joined_sets import Lines, changed_data, joined
from tests.helpers.messages import naming
from tests.helpers.places import contents, send

TEXT = "sentence1"


@pytest.fixture(scope="module")
def blind(opinion_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The single-sentence set without text; read only."""
    root = tmp_path_factory.mktemp("blind") / "opinion"
    send(opinion_set.root, str(root), without_text=True)
    return root


def rows(root: Path, split: str = "train") -> Lines:
    columns = ("source_row", "sentence1", "label", "logits", "ids1")
    return list(ExampleSet.open(root).read(split, columns).to_pylist())


def by_text(logit_set: ExampleSet) -> dict[str, Any]:
    return {row["sentence1"]: row["logits"] for split in ("train", "validation") for row in rows(logit_set.root, split)}


def test_with_all_its_rows_it_is_the_set_that_it_was(
    blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    found = joined(blind, work, work / "data", tmp_path)
    before, after = (
        {name: file for name, file in contents(root).items() if name.endswith((".parquet", "tokenizer.json"))}
        for root in (opinion_set.root, found.root)
    )
    assert after == before
    record = found.record
    assert (record.fingerprint, record.scores) == (opinion_set.record.fingerprint, opinion_set.record.scores)
    assert (record.format_version, record.state) == (1, "verified")
    assert found.matched == {"validation": VALIDATION_ROWS, "train": TRAIN_ROWS}
    for left in (found.extra, found.missing, found.other_gold):
        assert left == {"validation": [], "train": []}


def test_versions_that_a_stranger_claims_are_left_behind(
    blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    shutil.copytree(blind, tmp_path / "claims")
    record = read_set_record(tmp_path / "claims")
    before = Version(format_version=1, settings=record.settings | {"source.train": "0" * 64})
    write_set_record(tmp_path / "claims", changed(record, versions_before=(before,)))
    found = joined(tmp_path / "claims", work, work / "data", tmp_path)
    assert (found.record.versions_before, found.record.fingerprint) == ((), opinion_set.record.fingerprint)


def test_variants_without_their_texts_are_left_behind(
    augmented_set: ExampleSet, opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    send(augmented_set.root, str(tmp_path / "blind"), without_text=True)
    found = joined(tmp_path / "blind", work, work / "data", tmp_path)
    assert found.record.fingerprint == opinion_set.record.fingerprint
    keys = augmented_set.read("train", ("source_row", "variant"), "variant > 0").to_pylist()
    assert found.missing == {"validation": [], "train": [(row["source_row"], row["variant"]) for row in keys]}
    assert found.variants is not None
    assert found.variants.settings == augmented_set.record.augmentation.settings  # type: ignore[union-attr]
    made = f"{len(keys):,} variants of rows of train by mask-pos ("
    (told,) = [note for note in found.record.notes if made in note]
    assert "mask_probability 0.3" in told
    assert "num_variants 3" in told
    assert told in " ".join((found.root / "README.md").read_text().replace("\\", "").split())
    flags = ["--manifest", work / "opinion.yaml", "--data", work / "data", "--store", tmp_path, "--name", "joined"]
    printed = invoke("join", tmp_path / "blind", *flags)
    assert printed.exit_code == 0, printed.stderr
    assert told in " ".join(printed.stderr.split())
    variants = json.loads(invoke("join", tmp_path / "blind", *flags, "--json").stdout)["variants"]
    assert (variants["method"], variants["rows"]) == ("mask-pos", len(keys))


def test_rows_are_found_by_their_text(blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    logits = by_text(opinion_set)
    new = [{TEXT: f"Nobody knows text {k}.", "label": 0} for k in range(2)]
    own = changed_data(
        work,
        tmp_path,
        train=lambda lines: [lines[1], lines[0], new[0], *lines[3:], new[1]],  # swapped, changed, one more
        validation=lambda lines: lines[:-1],
    )
    found = joined(blind, work, own, tmp_path)
    lines = [json.loads(line) for line in (own / "opinion" / "train.jsonl").read_text().splitlines()]
    assert found.matched == {"validation": VALIDATION_ROWS - 1, "train": TRAIN_ROWS - 1}
    assert found.extra == {"validation": [], "train": [2, TRAIN_ROWS]}
    there = {line[TEXT] for line in lines}
    gone = [k for k, row in enumerate(rows(opinion_set.root)) if row["sentence1"] not in there]
    assert found.missing["train"] == [(k, 0) for k in gone]
    got = rows(found.root)
    assert [row["source_row"] for row in got] == [k for k in range(TRAIN_ROWS + 1) if k not in (2, TRAIN_ROWS)]
    for row in got:
        assert row["sentence1"] == lines[row["source_row"]][TEXT]
        assert row["logits"] == logits[row["sentence1"]]


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picks=st.lists(st.integers(-4, TRAIN_ROWS - 1), min_size=1, max_size=40), stays=st.booleans())
def test_any_choice_of_rows_gets_the_logits_of_its_texts(
    blind: Path,
    opinion_set: ExampleSet,
    work: Path,
    tmp_path_factory: pytest.TempPathFactory,
    picks: list[int],
    stays: bool,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    logits = by_text(opinion_set)
    own = changed_data(
        work,
        folder,
        train=lambda lines: [lines[k] if k >= 0 else {TEXT: f"unheard of {k}", "label": 1} for k in picks],
        validation=lambda lines: lines if stays else lines[::-1],
    )
    found = joined(blind, work, own, folder)
    got = rows(found.root)
    assert [row["source_row"] for row in got] == [place for place, k in enumerate(picks) if k >= 0]
    assert found.extra["train"] == [place for place, k in enumerate(picks) if k < 0]
    assert all(row["logits"] == logits[row["sentence1"]] for row in got)
    assert all(row["logits"] == logits[row["sentence1"]] for row in rows(found.root, "validation"))
    record = found.record
    assert (record.splits["train"].absent > 0) == (min(picks) < 0)
    assert ("joined" in record.settings) == (min(picks) < 0)


def test_gold_is_ones_own(blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    def other(lines: Lines) -> Lines:
        return [line | {"label": 1 - line["label"]} if k == 5 else line for k, line in enumerate(lines)]

    found = joined(blind, work, changed_data(work, tmp_path, train=other), tmp_path)
    assert found.other_gold == {"validation": [], "train": [5]}
    before, after = rows(opinion_set.root), rows(found.root)
    assert [k for k in range(TRAIN_ROWS) if before[k] != after[k]] == [5]
    assert after[5] == before[5] | {"label": 1 - before[5]["label"]}
    assert found.record.fingerprint != opinion_set.record.fingerprint


def test_of_equal_texts_the_one_at_the_same_place_counts(work: Path, teachers: Path, tmp_path: Path) -> None:
    own = changed_data(work, tmp_path, train=lambda lines: [*lines, lines[0] | {"label": 1 - lines[0]["label"]}])
    dump(dump_config(work, "opinion", tmp_path / "store", data=own), "distill teacher-dump")
    send(tmp_path / "store" / "opinion", str(tmp_path / "blind"), without_text=True)
    found = joined(tmp_path / "blind", work, own, tmp_path / "store")
    assert found.other_gold == {"validation": [], "train": []}
    assert found.record.fingerprint == ExampleSet.open(tmp_path / "store" / "opinion").record.fingerprint
    assert found.copies == 0
    without_copy = joined(tmp_path / "blind", work, work / "data", tmp_path / "other-store")
    assert (without_copy.copies, without_copy.missing["train"]) == (1, [])


@pytest.fixture
def gaps(blind: Path, work: Path, tmp_path: Path) -> Joined:
    """Joined with data of which four rows of train are unknown."""
    own = changed_data(
        work, tmp_path, train=lambda lines: [*lines[:-4], *({TEXT: f"new {k}", "label": 0} for k in range(4))]
    )
    return joined(blind, work, own, tmp_path / "store")


def test_a_set_with_gaps_says_so_and_is_used_like_any_other(gaps: Joined, tmp_path: Path) -> None:
    record = gaps.record
    verify_shards(gaps.root, record)
    assert {name: (described.rows, described.absent) for name, described in record.splits.items()} == {
        "validation": (VALIDATION_ROWS, 0),
        "train": (TRAIN_ROWS, 4),
    }
    assert record.rows_of("train") == TRAIN_ROWS - 4
    assert len(load_examples(ExampleSet.open(gaps.root), "train")) == TRAIN_ROWS - 4
    with open_catalog(tmp_path / "store") as connection:
        assert connection.execute("select max(source_row), count(*) from joined where split = 'train'").fetchone() == (
            TRAIN_ROWS - 5,
            TRAIN_ROWS - 4,
        )
    record = record.model_copy(
        update={"splits": dict(record.splits) | {"train": record.splits["train"].model_copy(update={"absent": 3})}}
    )
    with pytest.raises(IntegrityError, match=naming("store/joined: ", "'train'", "92 source rows", "93")):
        verify_shards(gaps.root, record)


@pytest.mark.slow
def test_a_student_learns_from_a_set_with_gaps(gaps: Joined, tmp_path: Path) -> None:
    flags = ["--embedding", "cbow", "--vector-size", "8", "--head", "linear", "--num-train-epochs", "1"]
    command = ["train-student", "--set", str(gaps.root), "--output-dir", str(tmp_path / "run"), *flags]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_repeated_join_changes_nothing(gaps: Joined, blind: Path, work: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in gaps.root.rglob("*") if path.is_file()}
    again = joined(blind, work, tmp_path / "data", tmp_path / "store")
    assert again == gaps
    assert {path: path.stat().st_mtime_ns for path in gaps.root.rglob("*") if path.is_file()} == before
    with pytest.raises(FingerprintMismatchError, match=naming("source.train: ", "--name")):
        joined(blind, work, work / "data", tmp_path / "store", name="joined")


def test_a_lost_file_may_come_back_with_other_bytes(blind: Path, work: Path, tmp_path: Path) -> None:
    first = joined(blind, work, work / "data", tmp_path)
    with_other_bytes(first.root)
    assert joined(blind, work, work / "data", tmp_path) == first
    verify_shards(first.root, read_set_record(first.root))


def test_a_split_that_one_does_not_have_is_missing(
    blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    (changed_data(work, tmp_path) / "opinion" / "validation.jsonl").unlink()
    found = joined(blind, work, tmp_path / "data", tmp_path)
    assert found.matched == {"train": TRAIN_ROWS}
    there = {row["sentence1"] for row in rows(opinion_set.root)}  # a text is known wherever it stands
    gone = [k for k, row in enumerate(rows(opinion_set.root, "validation")) if row["sentence1"] not in there]
    assert found.missing["validation"] == [(k, 0) for k in gone]
    assert list(found.record.splits) == ["train"]


def test_what_does_not_fit_is_refused(blind: Path, opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "distill join", "--without-text")):
        joined(opinion_set.root, work, work / "data", tmp_path)
    with pytest.raises(ConfigError, match=naming("blind0/opinion: ", "'opinion' with bad, good", "'roles'")):
        joined(blind, work, work / "data", tmp_path, manifest=work / "roles.yaml")
    (tmp_path / "other.yaml").write_text((work / "opinion.yaml").read_text().replace("[bad, good]", "[good, bad]"))
    with pytest.raises(ConfigError, match=naming("blind0/opinion: ", "'opinion'")):
        joined(blind, work, work / "data", tmp_path, manifest=tmp_path / "other.yaml")
    strange = {"train": lambda lines: [{TEXT: "x", "label": 0}], "validation": lambda lines: [{TEXT: "y", "label": 0}]}
    with pytest.raises(DataError, match=naming("blind0/opinion: ", "2 texts")):
        joined(blind, work, changed_data(work, tmp_path, **strange), tmp_path)
    assert not (tmp_path / "joined").exists()


def test_a_damaged_set_is_refused(blind: Path, work: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(blind, tmp_path / "blind"))
    record = read_set_record(root)
    first, second = (root / shard.path for shard in record.shards_of("train")[:2])
    shutil.copyfile(second, first)  # sound by itself, but not what distill.json says
    with pytest.raises(IntegrityError, match=r"train-00000-of-00004\.parquet"):
        joined(root, work, work / "data", tmp_path)


def test_the_command_tells_the_rows(blind: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = changed_data(work, tmp_path, train=lambda lines: [{TEXT: f"{k} new", "label": 0} for k in range(12)] + lines)
    flags = ["--data", str(own), "--manifest", str(work / "opinion.yaml"), "--store", str(tmp_path), "--name", "mine"]
    values = json.loads(CliRunner().invoke(app, ["join", str(blind), *flags, "--json"]).stdout)
    assert values["extra"] == {"validation": [], "train": list(range(12))}
    assert (values["root"], values["state"]) == (str(tmp_path / "mine"), "verified")
    monkeypatch.setattr(console.stdout, "width", 200)
    table = CliRunner().invoke(app, ["join", str(blind), *flags]).stdout
    assert "12: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …" in table
