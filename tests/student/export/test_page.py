"""``distill export --html`` as a command, its page in a real browser, and its columns."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.record_file import read_work_record, write_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.text.tokenizer import load_tokenizer
from student.export.engine_file import write_engine_file
from student.export.export import export
from student.export.html_file import write_html
from student.model.student import Student
from student.run_settings import ExportSettings
from tests.helpers.browser import PROGRAM, Tab, browser_tab
from tests.helpers.commands import invoke
from tests.helpers.node import PROGRAM as NODE
from tests.helpers.node import running_node

HOSTILE = "lovely <script>window.broken=1</script> <img src=x onerror=window.broken=1> &amp; food"
DESKTOP, PHONE = 1000, 375


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_the_command_writes_what_it_measures(roles_run: Path, store: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "roles.html"
    result = invoke("export", roles_run, "--html", page, "--store", store, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["bytes"]["after"] == page.stat().st_size
    rows = ExampleSet.open(store / "roles").read("validation", ("sentence1", "sentence2", "label")).to_pylist()
    with running_node() as node:
        answers = node.ask(page, [[row["sentence1"], row["sentence2"]] for row in rows])["predictions"]
    names = Student.load(roles_run).config.target.names
    is_right = [names[row["label"]] == answer["label"] for row, answer in zip(rows, answers, strict=True)]
    assert told["scores"]["validation"]["accuracy"]["after"] == pytest.approx(sum(is_right) / len(rows))


def test_without_the_training_rows_all_tokens_count_the_same(roles_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(roles_run, tmp_path / "run")
    record = read_work_record(run / "run.json")
    write_record(run / "run.json", record | {"logit_sets": [str(tmp_path / "gone")]})
    result = invoke("export", run, "--html", tmp_path / "x.html", "--store", tmp_path)
    assert result.exit_code == 0, result.output
    assert "warning: " in result.stderr
    assert (tmp_path / "x.html").exists()


def test_wrong_flags_leave_nothing(roles_run: Path, store: Path, tmp_path: Path) -> None:
    for flags in (("--tables", "int8"), ("--onnx", tmp_path / "x.onnx"), ("--output-dir", tmp_path / "small")):
        result = invoke("export", roles_run, "--html", tmp_path / "x.html", *flags, "--store", store)
        assert result.exit_code == 2
        assert "--html: " in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def page(opinion_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Student]:
    """The page of a student, and that student."""
    path = tmp_path_factory.mktemp("page") / "opinion.html"
    export(ExportSettings(run=opinion_run, html=path))
    return path, Student.load(opinion_run)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


needs_browser = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")


def opened(browser: Tab, page: Path, width: int) -> Tab:
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page.as_uri(), width)
    browser.until("run")
    return browser


def type_text(tab: Tab, text: str, words: int) -> None:
    tab.type("#text1", text)
    tab.until(f"document.querySelectorAll('#words span').length === {words}")


@pytest.mark.slow
@needs_browser
def test_typing_shows_what_the_student_says_and_asks_nobody(browser: Tab, page: tuple[Path, Student]) -> None:
    path, student = page
    tab = opened(browser, path, DESKTOP)
    type_text(tab, "the food was lovely .", 5)
    said = tab.value("(async () => (await backend.student.predict(['the food was lovely .']))[0])()")
    names = student.config.target.names
    bars = [text for name in names for text in (name, "", f"{100 * said['probabilities'][name]:.1f} %")]
    assert tab.texts("#bars > *") == bars
    assert tab.value("document.querySelector('#latency').textContent").startswith("answered in ")
    assert tab.value("document.querySelector('#teacher').hidden")
    assert {request for request in tab.requests if not request.startswith("data:,")} == {path.as_uri()}
    assert tab.complaints == []
    blocked = tab.value("fetch('https://example.org').then(() => 'asked', () => 'refused')")
    assert blocked == "refused"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_markup_stays_text_at_any_width(browser: Tab, page: tuple[Path, Student], width: int) -> None:
    tab = opened(browser, page[0], width)
    type_text(tab, f"{HOSTILE} {'x' * 300}", len(HOSTILE.split()) + 1)
    assert tab.texts("#words span")[:-1] == HOSTILE.split()
    assert tab.value("window.broken === undefined && document.querySelectorAll('script').length === 4")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.complaints == []


@pytest.mark.slow
@needs_browser
def test_a_file_becomes_a_table(browser: Tab, page: tuple[Path, Student], tmp_path: Path) -> None:
    tab = opened(browser, page[0], DESKTOP)
    (tmp_path / "given.txt").write_text("the food was lovely .\nthe wine was awful .\n" * 200)
    tab.choose_file("#file", tmp_path / "given.txt")
    tab.until("!document.querySelector('#download').hidden")
    assert len(tab.texts("tbody tr")) == 20
    assert tab.value("document.querySelector('#progress').textContent") == "400 rows; the first 20 are shown"


@pytest.mark.slow
@needs_browser
def test_a_long_text_and_its_probability_are_seen_on_a_phone(
    browser: Tab, page: tuple[Path, Student], tmp_path: Path
) -> None:
    tab, text = opened(browser, page[0], PHONE), "the food was lovely . " * 20
    type_text(tab, text, 100)
    (tmp_path / "given.txt").write_text(f"{text}\n" * 30)
    tab.choose_file("#file", tmp_path / "given.txt")
    tab.until("!document.querySelector('#download').hidden")
    for place in ("#text1", "#table"):  # nothing of them is scrolled out of sight
        sizes = tab.value(
            f"(e => [e.scrollTop, e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth])"
            f"(document.querySelector('{place}'))"
        )
        assert sizes == [0, 0, 0]
    assert tab.value("document.querySelector('td.figure').getBoundingClientRect().right") <= PHONE


COLUMNS = r"""
const html = require("node:fs").readFileSync(process.argv[1], "utf8");
const part = (id) => html.match(new RegExp(`<script id="${id}"[^>]*>([^]*?)</script>`))[1];
const functions = html.match(/function namesOfTexts[^]*?\n}\n\nfunction placesOfTexts[^]*?\n}\n/)[0];
(async () => {
  const student = await new Function(`${part("api")}; return openStudent`)()(part("student"));
  const run = {is_pair: student.isPair, text_columns: JSON.parse(part("facts")).textColumns};
  const places = new Function("run", "columns", `${functions}; return placesOfTexts(columns)`);
  console.log(JSON.stringify(JSON.parse(process.argv[2]).map((columns) => {
    try { return places(run, columns); } catch (error) { return error.message; }
  })));
})();
"""


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_a_file_may_name_its_texts_as_the_task_does(opinion_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(opinion_run / "tokenizer.json", Student.load(opinion_run).config.tokenizer_sha256)
    placed = {"opinion": (Student.load(opinion_run), opinion_run)}
    write_engine_file(placed, tokenizer, tmp_path / "opinion.distill")
    content = (tmp_path / "opinion.distill").read_bytes()
    write_html(content, "opinion", tmp_path / "own.html", [("message", "body")])
    files = [["id", "message"], ["body"], ["id", "text"], ["id", "comment"]]
    assert NODE is not None
    command = [NODE, "-e", COLUMNS, str(tmp_path / "own.html"), json.dumps(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *places, problem = json.loads(done.stdout)
    assert places == [[1], [0], [1]]
    assert "message" in problem
    assert "comment" in problem
