"""Sets with variants of every format version there has been must stay readable."""

import json
from pathlib import Path

import pytest

from pipeline.logit_set.reader import open_set
from pipeline.logit_set.record import AugmentedRecord
from pipeline.logit_set.verify import verify_shards
from pipeline.query.catalog import open_catalog
from student.data import load_examples

FORMATS = sorted((Path(__file__).parent / "fixtures" / "formats").glob("augmented-v*"))


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_set_with_variants_is_still_read(folder: Path) -> None:
    logit_set = open_set(folder / "roles")
    record = logit_set.record
    assert isinstance(record, AugmentedRecord)
    verify_shards(logit_set.root, record)
    rows = logit_set.read("train", ("source_row", "variant", "origin", "label", "sentence1")).to_pylist()
    assert [row["source_row"] for row in rows if row["origin"] == "original"] == list(range(6))
    variants = [row for row in rows if row["variant"]]
    assert len(variants) == record.augmentation.rows > 0
    assert {(row["origin"], row["label"]) for row in variants} == {("mask", None)}
    assert len(load_examples(logit_set, "train", "variant > 0")) == len(variants)


def test_there_is_a_fixture_of_the_current_version() -> None:
    versions = {json.loads((folder / "roles" / "distill.json").read_text())["format_version"] for folder in FORMATS}
    assert AugmentedRecord.model_fields["format_version"].default in versions


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_its_variants_are_still_queried(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "roles").symlink_to(folder / "roles", target_is_directory=True)
    with open_catalog(tmp_path) as connection:
        query = "select count(*) from roles_variants where parent.sentence1 is not null"
        count = connection.execute(query).fetchone()
    record = open_set(folder / "roles").record
    assert isinstance(record, AugmentedRecord)
    assert count == (record.augmentation.rows,)
