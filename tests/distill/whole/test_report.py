import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from tests.helpers.commands import invoke
from tests.helpers.report_pages import needs_nothing_else


def run(*arguments: object) -> Result:
    return invoke("report", *arguments)


def test_a_page_is_written_and_its_figures_are_told(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("opinion", "--store", store, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["path"] == "opinion-report.html"
    assert needs_nothing_else((tmp_path / "opinion-report.html").read_text())
    assert {"section", "title", "rows"} == told["figures"][0].keys()
    assert [path.name for path in tmp_path.iterdir()] == ["opinion-report.html"]


def test_a_set_and_a_run_of_one_name_have_a_page_each(
    store: Path, opinion_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(opinion_run, tmp_path / "runs" / "opinion")
    for what in ("opinion", "runs/opinion"):
        assert run(what, "--store", store).exit_code == 0
    assert {path.name for path in tmp_path.glob("*.html")} == {"opinion-report.html", "opinion-run-report.html"}


def test_the_page_goes_where_it_shall(token_store: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    result = run(token_store / "topk", "--output", page)
    assert (result.exit_code, page.is_file()) == (0, True)
    assert "topk" in result.stdout
    assert "topk" in page.read_text()


@pytest.mark.parametrize(
    ("what", "output", "words"),
    [
        ("opinoin", "page.html", ("'opinoin'", "Did you mean 'opinion'?")),
        ("opinion", ".", ("--output .: ",)),
        ("opinion", "page.html", ("'distill-offline[report]'",)),
    ],
)
def test_what_cannot_be_drawn_is_one_message(
    what: str, output: str, words: tuple[str, ...], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "report" in words[0]:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    result = run(what, "--store", store, "--output", output)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words)
