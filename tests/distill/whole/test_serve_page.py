"""The page of ``distill serve`` in a real browser, where there is one."""

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.predict.predictor import Predictor
from tests.helpers.browser import PROGRAM, Tab, browser_tab
from tests.helpers.server import serving

pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")]
HOSTILE = "lovely <script>window.broken=1</script> <img src=x onerror=window.broken=1> &amp; food"
DESKTOP, PHONE = 1000, 375
MOST_AT_ONCE = 4  # inputs of a request, fewer than a text has words and a file rows


@pytest.fixture(scope="module")
def url(opinion_run: Path, roles_run: Path) -> Iterator[str]:
    """A server of two students, that of single sentences first."""
    with serving(opinion_run, roles_run, "--max-client-batch-size", MOST_AT_ONCE) as (_, address):
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, url: str) -> Tab:
    """The opened page. At the end, it has sent no other requests, and the browser has reported no errors."""
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(f"{url}/", DESKTOP)
    browser.until("run")
    return browser


def shown(probability: float) -> str:
    return f"{100 * probability:.1f} %"


def type_text(tab: Tab, text: str, words: int) -> None:
    tab.type("#text1", text)
    tab.until(f"document.querySelectorAll('#words span').length === {words}")


def test_typing_shows_what_the_predictor_says_and_what_hangs_on_each_word(tab: Tab, opinion_run: Path) -> None:
    words = ["the", "food", "was", "lovely", "."]
    type_text(tab, " ".join(words), len(words))
    predictor = Predictor(opinion_run)
    without = [" ".join(words[:k] + words[k + 1 :]) for k in range(len(words))]
    whole, *others = predictor([" ".join(words), *without])
    names = predictor.student.config.target.names
    bars = [text for name in names for text in (name, "", shown(whole["probabilities"][name]))]
    assert tab.texts("#bars > *") == bars
    assert tab.texts("#bars .best") == [whole["label"]]
    titles = tab.value("[...document.querySelectorAll('#words span')].map(e => e.title)")
    assert titles == [f"without it: {shown(other['probabilities'][whole['label']])}" for other in others]
    assert tab.value("document.querySelector('#latency').textContent").startswith("answered in ")
    assert tab.value("document.querySelector('#teacher').hidden")


def test_markup_stays_text_and_nobody_else_is_asked(tab: Tab, url: str) -> None:
    type_text(tab, HOSTILE, len(HOSTILE.split()))
    assert tab.texts("#words span") == HOSTILE.split()
    assert tab.value("window.broken === undefined && document.querySelectorAll('script').length === 1")
    foreign = [request for request in tab.requests if not request.startswith((f"{url}/", "data:,"))]
    assert (foreign, tab.complaints) == ([], [])


def test_pairs_have_two_fields_and_the_teachers_answer(tab: Tab, roles_set: ExampleSet) -> None:
    row = roles_set.read("validation", ("sentence1", "sentence2", "logits"), "variant = 0").slice(3, 1)
    tab.value("document.querySelector('select').selectedIndex = 1")
    tab.value("document.querySelector('select').onchange()")
    for number in (1, 2):
        tab.type(f"#text{number}", row[f"sentence{number}"][0].as_py())
    tab.until("!document.querySelector('#teacher').hidden")
    probabilities = softmax(row.column("logits").combine_chunks().flatten().to_numpy()[None])[0].tolist()
    names = roles_set.record.target.names
    expected = [text for name, p in zip(names, probabilities, strict=True) for text in (name, "", shown(p))]
    assert tab.texts("#teacher-bars > *") == expected


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_it_fits_into_the_window(tab: Tab, url: str, width: int) -> None:
    tab.open(f"{url}/", width)
    tab.until("run")
    type_text(tab, "food " + "x" * 300, 2)
    assert tab.value("document.documentElement.scrollWidth") <= width


def test_a_file_becomes_a_table(tab: Tab, opinion_run: Path, tmp_path: Path) -> None:
    texts = ["the food was lovely .", 'a "quoted", text', "two\nlines", HOSTILE] + ["the wine was awful ."] * 300
    with (tmp_path / "given.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sentence1"), *enumerate(texts)])
    tab.do("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.choose_file("#file", tmp_path / "given.csv")
    tab.until("!document.querySelector('#download').hidden")
    assert len(tab.texts("tbody tr")) == 20
    tab.value("document.querySelector('#download').click()")
    rows = downloaded(tmp_path / "given-predicted.csv")
    assert [(row["id"], row["sentence1"]) for row in rows] == [(str(k), text) for k, text in enumerate(texts)]
    for row, result in zip(rows, Predictor(opinion_run)(texts), strict=True):
        assert row["label"] == result["label"]
        told = {name: float(row[name]) for name in result["probabilities"]}
        assert told == pytest.approx(result["probabilities"], abs=1e-6)


def downloaded(path: Path) -> list[dict[str, str]]:
    """The rows of a file, once the browser has written it."""
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cells_of(tab: Tab, name: str, content: str) -> object:
    """The columns of a file and its rows, as the page reads it."""
    return tab.value(
        f"(({{columns, rows}}) => [columns, ...rows])(parseFile({json.dumps(name)}, {json.dumps(content)}))"
    )


def test_files_are_read_as_the_command_reads_them(tab: Tab) -> None:
    head = ["id", "text"]
    csv_text = 'id,text\r\n1,"a ""b"", c"\n\n2,"two\nlines"\n3,"a"b\n4,\n5,"no end'
    rows = [["1", 'a "b", c'], ["2", "two\nlines"], ["3", '"a"b'], ["4", ""], ["5", '"no end']]
    assert cells_of(tab, "a.csv", csv_text) == [head, *rows]
    assert cells_of(tab, "a.csv", "text\n\na\n") == [["text"], ["a"]]
    tsv_text = 'id\ttext\r\n1\t"an inch is 1"\n\n2\t"never closed\n3\t'
    assert cells_of(tab, "a.tsv", tsv_text) == [head, ["1", '"an inch is 1"'], ["2", '"never closed'], ["3", ""]]
    assert cells_of(tab, "a.jsonl", '{"id": 1, "text": "a"}\n\n{"id": 2}\n') == [head, [1, "a"], [2, ""]]


@pytest.mark.parametrize("line", ["[1]", "null", '"text"', "7"])
def test_a_line_that_is_no_object_is_told(tab: Tab, line: str, tmp_path: Path) -> None:
    (tmp_path / "given.jsonl").write_text(f'{{"text": "a"}}\n\n{line}\n')
    tab.choose_file("#file", tmp_path / "given.jsonl")
    tab.until("document.querySelector('#progress').textContent")
    assert tab.texts("#progress") == ["given.jsonl: line 3 is no JSON object"]


def test_another_student_ends_the_work_on_a_file(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("the food was lovely .\n" * 400)
    tab.choose_file("#file", tmp_path / "given.txt")
    tab.until("document.querySelector('#progress').textContent")
    tab.value("document.querySelector('select').selectedIndex = 1")
    tab.value("document.querySelector('select').onchange()")
    requests = len(tab.requests)
    time.sleep(0.5)
    assert len(tab.requests) <= requests + 1  # at most the one that was on its way
    assert tab.texts("#progress") == [""]
    assert tab.texts("#table *") == []
    assert tab.value("document.querySelector('#download').hidden")


def test_a_file_without_texts_is_told_by_its_columns(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("id\tcomment\n1\tlovely\n")
    tab.choose_file("#file", tmp_path / "other.tsv")
    tab.until("document.querySelector('#progress').textContent")
    (told,) = tab.texts("#progress")
    assert told == "other.tsv: no column sentence1 or sentence or text; there are: id, comment"
