"""Derived sets of every format version there has been must stay readable: without text, joined, extended."""

import json
from pathlib import Path

import pytest

from pipeline.logit_set.reader import open_set
from pipeline.logit_set.record import DerivedRecord, fingerprint, read_kind
from pipeline.logit_set.verify import verify_shards
from pipeline.query.catalog import open_catalog
from student.data import load_examples

FORMATS = sorted((Path(__file__).parent / "fixtures" / "formats").glob("derived-v*"))
ROWS = {"text-free": (6, 4), "joined": (6, 4), "extended": (7, 4)}  # of train and validation
each_version = pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)


def record_of(root: Path) -> DerivedRecord:
    record = read_kind(root, DerivedRecord, "")
    verify_shards(root, record)
    return record


@each_version
@pytest.mark.parametrize("name", ROWS)
def test_a_derived_set_is_still_sound_and_queried(folder: Path, name: str, tmp_path: Path) -> None:
    record = record_of(folder / name)
    assert (record.state, record.rows_of("train"), record.rows_of("validation")) == ("verified", *ROWS[name])
    (tmp_path / "it").symlink_to(folder / name, target_is_directory=True)
    with open_catalog(tmp_path) as connection:
        assert connection.execute("select count(logits) from it").fetchone() == (sum(ROWS[name]),)


@each_version
def test_a_set_without_text_still_has_hashes_only(folder: Path) -> None:
    record = record_of(folder / "text-free")
    assert not record.has_text
    assert "The texts are not in this set" in (folder / "text-free" / "README.md").read_text()


@each_version
def test_a_joined_set_still_has_its_gaps(folder: Path) -> None:
    record = record_of(folder / "joined")
    assert (record.splits["train"].rows, record.splits["train"].absent) == (7, 1)
    assert record.settings["joined"] == record_of(folder / "text-free").fingerprint
    assert len(load_examples(open_set(folder / "joined"), "train")) == 6


@each_version
def test_an_extended_set_still_has_files_of_the_version_before(folder: Path) -> None:
    record = record_of(folder / "extended")
    (before,) = record.versions_before
    versions = [shard.version for shard in record.shards if shard.split == "train"]
    assert versions == [fingerprint(before.settings)] * 2 + [None]
    assert len(load_examples(open_set(folder / "extended"), "train")) == 7


def test_there_is_a_fixture_of_the_current_version() -> None:
    versions = {json.loads((folder / "joined" / "distill.json").read_text())["format_version"] for folder in FORMATS}
    assert DerivedRecord.model_fields["format_version"].default in versions
