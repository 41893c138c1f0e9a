import csv
import io
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.commands import app
from tests.helpers.commands import invoke
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS

COUNTS = "select split, count(*) as n, min(source_row) as first from opinion group by all order by split"
EXPECTED = [{"split": "train", "n": TRAIN_ROWS, "first": 0}, {"split": "validation", "n": VALIDATION_ROWS, "first": 0}]


@pytest.fixture(scope="module")
def shelf(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the store, into which a catalog may be written."""
    return Path(shutil.copytree(store, tmp_path_factory.mktemp("shelf") / "store"))


def test_a_table_for_people(shelf: Path) -> None:
    result = invoke("sql", COUNTS, "--store", shelf)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert cells == [["train", "96", "0"], ["validation", "40", "0"]]
    assert all(name in result.stdout for name in ("split", "n", "first"))


def test_json_csv_and_parquet_hold_the_same_rows(shelf: Path, tmp_path: Path) -> None:
    assert json.loads(invoke("sql", COUNTS, "--store", shelf, "--json").stdout) == EXPECTED
    rows = list(csv.DictReader(io.StringIO(invoke("sql", COUNTS, "--store", shelf, "--csv").stdout)))
    assert rows == [{key: str(value) for key, value in row.items()} for row in EXPECTED]
    result = invoke("sql", COUNTS, "--store", shelf, "--parquet", tmp_path / "counts.parquet")
    assert (result.exit_code, result.stdout) == (0, "")
    assert pq.read_table(tmp_path / "counts.parquet").to_pylist() == EXPECTED


def test_csv_is_quoted_and_json_hashes_are_hexadecimal(shelf: Path) -> None:
    text = "select 'a,\"b\"' as text, text_hash from opinion order by split, source_row limit 1"
    assert next(csv.DictReader(io.StringIO(invoke("sql", text, "--store", shelf, "--csv").stdout)))["text"] == 'a,"b"'
    (row,) = json.loads(invoke("sql", text, "--store", shelf, "--json").stdout)
    assert len(bytes.fromhex(row["text_hash"])) == 16
    nested = "select text_hash, [{'hash': text_hash}] as hashes from opinion order by split, source_row limit 1"
    (row,) = json.loads(invoke("sql", nested, "--store", shelf, "--json").stdout)
    assert row["hashes"] == [{"hash": row["text_hash"]}]
    values = next(csv.DictReader(io.StringIO(invoke("sql", nested, "--store", shelf, "--csv").stdout)))
    assert values["text_hash"] == row["text_hash"]
    assert row["text_hash"] in values["hashes"]


def test_a_list_of_logits_survives_parquet(shelf: Path, tmp_path: Path) -> None:
    path = tmp_path / "logits.parquet"
    invoke("sql", "select logits, softmax(logits) as p from roles", "--store", shelf, "--parquet", path)
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == TRAIN_ROWS + VALIDATION_ROWS
    assert all(len(row["logits"]) == 2 and sum(row["p"]) == pytest.approx(1) for row in rows)


def test_two_forms_at_once_are_refused(shelf: Path) -> None:
    result = invoke("sql", COUNTS, "--store", shelf, "--json", "--csv")
    assert result.exit_code == 2
    assert "--json, --csv and --parquet" in result.stderr


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nothing from opinion", "nothing"),
        ("drop view opinion", "DROP"),
        ("select 1; select 2", "SELECT"),
        ("select 1 / 0 as x, error('stop') from opinion", "stop"),
    ],
)
def test_what_is_not_a_sound_select_is_refused(query: str, message: str, shelf: Path, tmp_path: Path) -> None:
    for form in ([], ["--json"], ["--parquet", tmp_path / "out.parquet"]):
        result = invoke("sql", query, "--store", shelf, *form)
        assert result.exit_code == 2
        assert re.search(message, result.stderr, re.DOTALL)
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = invoke("sql", "select 1", "--store", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert f"{tmp_path / 'nowhere'}: " in result.stderr


def test_the_sets_of_a_store_are_listed(shelf: Path) -> None:
    sets = json.loads(invoke("sql", "from sets order by 1", "--store", shelf, "--json").stdout)
    assert [(one["set"], one["state"]) for one in sets] == [("opinion", "verified"), ("roles", "verified")]
    assert (shelf / "catalog.duckdb").is_file()


def test_the_store_comes_from_the_environment_too(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_STORE", str(shelf))
    names = json.loads(invoke("sql", 'select "set" from sets order by 1', "--json").stdout)
    assert names == [{"set": "opinion"}, {"set": "roles"}]


def test_the_query_comes_from_a_file_or_from_standard_input(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "counts.sql").write_text(f"-- rows of each split\n{COUNTS};\n")
    assert json.loads(invoke("sql", "--file", tmp_path / "counts.sql", "--store", shelf, "--json").stdout) == EXPECTED
    for arguments in ([], ["-"]):
        result = CliRunner().invoke(app, ["sql", *arguments, "--store", str(shelf), "--json"], input=COUNTS)
        assert json.loads(result.stdout) == EXPECTED


def test_a_query_that_is_not_there_or_twice_is_refused(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.sql").write_bytes(b"\xff")
    for arguments, message in (
        (["select 1", "--file", tmp_path / "binary.sql"], "--file"),
        (["--file", tmp_path / "gone.sql"], "gone.sql: "),
        (["--file", tmp_path / "binary.sql"], "binary.sql: "),
        ([], "SELECT"),
    ):
        result = invoke("sql", *arguments, "--store", shelf)
        assert result.exit_code == 2
        assert re.search(message, result.stderr)


def test_texts_are_cut_for_people_and_whole_for_machines(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "select repeat('word ', 100) || chr(27) || '[2J' as text"
    whole = "word " * 100 + "\x1b[2J"
    monkeypatch.delenv("COLUMNS", raising=False)  # which a runner of tests may have set
    piped = invoke("sql", query, "--store", shelf).stdout
    assert "word " * 100 + r"\x1b[2J" in piped
    monkeypatch.setenv("COLUMNS", "80")
    table = invoke("sql", query, "--store", shelf).stdout
    assert "word word" in table
    assert "…" in table
    for text in (piped, table):
        assert "\x1b" not in text
        assert len(text.splitlines()) == 5
    assert json.loads(invoke("sql", query, "--store", shelf, "--json").stdout) == [{"text": whole}]
    assert list(csv.DictReader(io.StringIO(invoke("sql", query, "--store", shelf, "--csv").stdout))) == [
        {"text": whole}
    ]


def test_a_date_that_python_has_not_is_no_traceback(shelf: Path) -> None:
    result = invoke("sql", "select '290000-01-01'::date as day", "--store", shelf)
    assert (result.exit_code, "::varchar" in result.stderr) == (2, True)
    assert "290000-01-01" in invoke("sql", "select '290000-01-01'::date::varchar as day", "--store", shelf).stdout
