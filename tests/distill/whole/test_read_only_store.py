"""A store that may only be read is queried, verified, trained from and copied; nothing is written into it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.query.catalog import CATALOG_FILE, build_catalog
from pipeline.sets.kinds.examples import ExampleSet
from tests.helpers.commands import invoke
from tests.helpers.permissions import unwritable


@pytest.fixture
def shelf(store: Path, tmp_path: Path) -> Path:
    """A copy of the store, without a catalog."""
    return Path(shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns(CATALOG_FILE)))


@pytest.fixture
def read_only(shelf: Path) -> Iterator[Path]:
    """The same, which may only be read."""
    with unwritable(shelf):
        yield shelf


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fingerprint(folder: Path) -> str:
    return ExampleSet.open(folder).record.fingerprint


def ends_well(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, f"{arguments}: {result.output}{result.exception!r}"
    return result.output


def test_it_is_read_queried_and_verified(read_only: Path) -> None:
    before = files(read_only)
    for _ in range(2):
        assert "12" in ends_well("sql", "select 5 + 7 from opinion limit 1", "--store", read_only)
    for command in ("verify", "describe"):
        ends_well(command, read_only / "opinion")
    ends_well("diff", read_only / "opinion", read_only / "opinion")
    ends_well("sql", "--explain-row", "opinion:train:0", "--store", read_only)
    assert files(read_only) == before


def test_a_catalog_that_is_out_of_date_is_left_alone(shelf: Path) -> None:
    shutil.move(shelf / "roles", shelf.parent / "roles")
    build_catalog(shelf)
    shutil.move(shelf.parent / "roles", shelf / "roles")
    old = (shelf / CATALOG_FILE).read_bytes()
    with unwritable(shelf):
        rows = json.loads(invoke("sql", 'select "set" from sets order by 1', "--store", shelf, "--json").stdout)
        assert [row["set"] for row in rows] == ["opinion", "roles"]
    assert (shelf / CATALOG_FILE).read_bytes() == old


@pytest.mark.slow
def test_students_are_trained_scored_and_shown_from_it(read_only: Path) -> None:
    run, page = read_only.parent / "run", read_only.parent / "page.html"
    sizes = ("--matrix-size", 3, "--vector-size", 4, "--num-train-epochs", 1)
    ends_well("train-student", "--set", "opinion", "--store", read_only, "--output-dir", run, *sizes)
    for command in (("evaluate", run), ("verify", run), ("report", run, "--output", page)):
        ends_well(*command, "--store", read_only)
    ends_well("report", "opinion", "--store", read_only, "--output", page)
    query = f"select predict('{run}', sentence1) from opinion limit 1"
    assert "_" not in ends_well("sql", query, "--store", read_only, "--csv").splitlines()[-1]


@pytest.mark.slow
def test_it_is_copied(read_only: Path) -> None:
    there, other = read_only.parent / "there" / "opinion", read_only.parent / "other"
    ends_well("pull", f"file://{read_only}/opinion", "--store", other)
    ends_well("push", "opinion", f"file://{there}", "--store", read_only)
    ends_well("pull", f"file://{there}", "--store", other, "--name", "again")
    for name in ("opinion", "again"):
        ends_well("verify", name, "--store", other)
        assert fingerprint(other / name) == fingerprint(read_only / "opinion")
