import json
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.apps.report import charts
from distill.apps.report.page import TEXT_LENGTH, Page, Picture, Section, Table, clipped, name_of, render
from tests.helpers.commands import invoke
from tests.helpers.report_pages import Parsed, needs_nothing_else

HOSTILE = ["<script>alert(1)</script>", r"$\frac{1}{2}$", '"><img src=x onerror=alert(1)>', "</svg><b>&amp;", "#0072b2"]


def matrix(*names: str) -> str:
    first, second = names[:2]
    counts = {first: {first: 3, second: 1}, second: {second: 4}}
    return charts.matrix("", counts, names, ("gold", "teacher"), "").svg


def loss(*values: float) -> str:
    return charts.curves("", [1, 2, 3], {"loss": values}, "epoch", "", 3).svg


def page_of(text: str, svg: str = "<svg></svg>") -> Page:
    table = Table(text, (text,), [(text,)], text)
    section = Section(text, text, {text: text}, (Picture(text, svg, text, []),), (table,))
    return Page(text, text, text, (section,))


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_stays_text(text: str) -> None:
    harmless = [tag for tag, _ in Parsed(render(page_of("harmless"))).tags]
    parsed = Parsed(render(page_of(text)))
    assert [tag for tag, _ in parsed.tags] == harmless
    assert parsed.tables == {text: [[text], [text]]}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_label_in_a_drawing_stays_text(text: str) -> None:
    svg = matrix(text, "plain")
    harmless = matrix("harmless", "plain")
    parsed = Parsed(render(page_of("x", svg)))
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in Parsed(render(page_of("x", harmless))).tags]
    assert parsed.drawn.count(clipped(text, 18)) == 2  # beside its row and under its column
    assert needs_nothing_else(render(page_of("x", svg)))


def test_a_label_in_letters_that_matplotlib_lacks_makes_no_noise(recwarn: pytest.WarningsRecorder) -> None:
    svg = matrix("好", "悪い\x00\n")
    assert {"好", "悪い"} <= set(Parsed(svg).drawn)
    assert not recwarn.list


def test_same_figures_same_bytes_in_any_style() -> None:
    drawn = loss(3.0, 2.0, 1.0)
    with matplotlib.rc_context({"font.size": 20, "axes.linewidth": 9, "svg.fonttype": "path"}):
        assert loss(3.0, 2.0, 1.0) == drawn
        assert matplotlib.rcParams["font.size"] == 20
    assert loss(3.0, 2.0, 1.5) != drawn


def test_drawings_take_their_colours_from_the_page() -> None:
    svg = charts.histogram("", {"a": [1, 2]}, {"a": "#0072b2"}, (0, 2), ("x", "y"), "").svg
    assert "var(--blue)" in svg
    assert "currentColor" in svg
    assert "#0072b2" not in svg
    assert "http" not in svg  # no namespaces, no metadata
    html = render(page_of("x", svg))
    assert all(f"{variable}:" in html for variable in ("--blue", "--red", "--green", "--purple", "--faint"))
    assert "prefers-color-scheme: dark" in html


def test_what_a_matrix_writes() -> None:
    texts = Parsed(matrix("no", "yes")).drawn
    assert {"no", "yes", "gold", "teacher"} <= set(texts)
    written = ["3", "75%", "1", "25%", "4", "100%"]
    assert [text for text in texts if text in written] == written


def test_a_large_confusion_matrix_stays_readable() -> None:
    names = [f"class {number}" for number in range(charts.MOST_NAMED_CLASSES + 1)]
    texts = Parsed(matrix(*names)).drawn
    assert {"gold", "teacher"} <= set(texts)
    assert not [text for text in texts if text.startswith("class") or text.endswith("%")]


def test_figures_are_set_to_the_right_and_read_alike() -> None:
    rows = [("a", 0.75, 1234), ("b", None, 2), ("c", 12345.678, 0.00001)]
    html = render(Page("k", "t", "l", (Section("s", tables=(Table("t", ("name", "x", "n"), rows),)),)))
    assert Parsed(html).tables["t"][1:] == [["a", "0.7500", "1,234"], ["b", "", "2"], ["c", "12,346", "1.0e-05"]]
    classes = [attrs.get("class") for tag, attrs in Parsed(html).tags if tag in ("td", "th")]
    assert classes == [None, "figure", "figure"] * 4


def test_a_table_without_rows_is_left_out() -> None:
    tables = (Table("Mistakes", ("row",), []), Table("Labels", ("label",), [("yes",)]))
    html = render(Page("k", "t", "l", (Section("s", tables=tables),)))
    assert ("Mistakes" in html, "Labels" in html) == (False, True)


@given(st.text(), st.integers(1, 40))
def test_a_clipped_text_is_one_printable_line(text: str, length: int) -> None:
    line = clipped(text, length)
    assert len(line) <= length
    assert line.isprintable()
    assert clipped(line, length) == line


def test_clipping_by_hand() -> None:
    assert clipped("a\n b\tc") == "a b c"
    assert clipped("x" * 200) == "x" * (TEXT_LENGTH - 1) + "…"
    assert clipped(None) == ""
    assert clipped("red\x1b[31m") == "red [31m"


def test_a_class_without_a_name_has_its_number() -> None:
    assert [name_of(("a", "b"), number) for number in (0, 1, 2, -1)] == ["a", "b", "2", "-1"]


def test_figures_are_plain_values() -> None:
    page = Page("k", "t", "l", (Section("s", pictures=(Picture("p", "<svg></svg>", "c", [{"n": 3}]),)),))
    assert json.loads(json.dumps(page.figures())) == [{"section": "s", "title": "p", "rows": [{"n": 3}]}]


def test_the_folder_of_a_teacher_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    done = invoke("report", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path}: holds a teacher" in done.stderr
