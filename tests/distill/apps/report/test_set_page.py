import json
import shutil
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax

from distill.apps.report import charts, predictions, set_page
from distill.apps.report.page import Page, Rows, render
from distill.apps.report.predictions import Predictions, certainty
from distill.apps.report.set_page import FARTHEST, LABEL_ERRORS, changed_mind
from pipeline.errors import IntegrityError
from pipeline.files import sha256
from pipeline.record_file import read_record
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, changed, read_set_record, write_set_record
from pipeline.sets.signals.rows import logits_of
from pipeline.sql.read_only_query import open_files
from pipeline.tasks.metrics import confusion_of_labels
from pipeline.tasks.target import Target, gold_arrays
from pipeline.tasks.task import Bins
from tests.helpers.messages import naming
from tests.helpers.report_pages import Parsed, needs_nothing_else
from tests.helpers.shards import write_examples

CLASSES = Target(kind="classes", names=("no", "yes"))
SCORE = Target(kind="score", names=("score",))
BINS = Target(kind="bins", names=("1", "5"), bins=Bins(low=1, high=5, width=4))


def rows_of(logits: list[list[float]], **columns: Sequence[object]) -> pa.Table:
    """A table of a set's columns; what is not given is null, or that of an original row."""
    size = len(logits)
    types = {"variant": pa.int32(), "label": pa.int32(), "score": pa.float32()}
    usual: dict[str, Sequence[object]] = {
        "split": ["validation"] * size,
        "source_row": range(size),
        "variant": [0] * size,
        "origin": ["original"] * size,
        "label": [None] * size,
        "score": [None] * size,
        "sentence1": [f"row {number}" for number in range(size)],
        "sentence2": [None] * size,
    }
    arrays = {name: pa.array(columns.get(name, values), types.get(name)) for name, values in usual.items()}
    return pa.table(arrays | {"logits": pa.array(logits, pa.list_(pa.float32()))})


def of(rows: pa.Table, target: Target) -> Predictions:
    return Predictions("teacher", target, logits_of(rows, target.num_logits), *gold_arrays(target, rows))


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_files({}) as connection:
        yield connection


# Sure of "yes" by 3 to 1 three times, right twice; sure of "no" by 9 to 1 once, right.
FOUR = rows_of([[0, log(3)], [0, log(3)], [0, log(3)], [log(9), 0]], label=[1, 1, 0, 0])


def test_calibration_and_confusion_by_hand() -> None:
    four = of(FOUR, CLASSES)
    counts = confusion_of_labels(CLASSES, four.logits_NC, four.label_N)
    (reliability, confusion), _ = predictions.against_gold([four], counts, {})
    figures = [(row["n"], row["confidence"], row["accuracy"]) for row in reliability.rows]
    assert figures == [(3, pytest.approx(0.75), pytest.approx(2 / 3)), (1, pytest.approx(0.9), 1)]
    error = 3 / 4 * (0.75 - 2 / 3) + 1 / 4 * (1 - 0.9)
    assert f"calibration error: {error:.4f}." in reliability.caption
    assert confusion.rows == [
        {"gold": "no", "teacher": "no", "n": 1},
        {"gold": "no", "teacher": "yes", "n": 1},
        {"gold": "yes", "teacher": "yes", "n": 2},
    ]


def test_calibration_of_labels_that_hold_by_themselves() -> None:
    three = rows_of([[log(3), -log(3)], [log(3), log(9)], [0, 0]])  # probabilities 3/4 and 1/4, 3/4 and 9/10, 1/2
    lists = pa.array([[0], [1], None], pa.list_(pa.int32()))
    with_lists = three.set_column(three.schema.get_field_index("label"), "label", lists)
    predicted = of(with_lists, Target(kind="labels", names=("a", "b")))
    (reliability,), _ = predictions.against_gold([predicted.with_gold], {}, {})
    figures = [(row["n"], row["confidence"], row["accuracy"]) for row in reliability.rows]
    assert figures == [(1, pytest.approx(0.25), 0), (2, pytest.approx(0.75), 0.5), (1, pytest.approx(0.9), 1)]
    assert f"calibration error: {(0.25 + 2 * 0.25 + 0.1) / 4:.4f}." in reliability.caption
    (probabilities,) = certainty(predicted)
    counted = {row["from"]: row for row in probabilities.rows}
    assert [counted[0.75][kind] for kind in ("wrong answers", "right answers", "all rows")] == [1, 1, 0]
    assert counted[0.5]["all rows"] == 2
    assert sum(row["right answers"] for row in probabilities.rows) == 3


def test_margins_and_entropies_by_hand() -> None:
    margin, entropy = certainty(of(FOUR, CLASSES))
    filled = {
        round(row["from"], 6): (row["wrong answers"], row["right answers"])
        for row in margin.rows
        if row["wrong answers"] or row["right answers"]
    }
    # 3/4 - 1/4, and 9/10 - 1/10, which is just below 0.8 in float32
    assert filled == {0.5: (1, 2), 0.75: (0, 1)}
    of_three = 0.75 * log(4 / 3) + 0.25 * log(4)
    assert [row["right answers"] for row in entropy.rows if row["from"] <= of_three < row["to"]] == [2]
    assert entropy.rows[-1]["to"] == pytest.approx(log(2))


@pytest.mark.parametrize(
    ("target", "logits"), [(SCORE, [[1.0], [3.0], [5.0]]), (BINS, [[20.0, -20.0], [0.0, 0.0], [-20.0, 20.0]])]
)
def test_scores_by_hand(connection: duckdb.DuckDBPyConnection, target: Target, logits: list[list[float]]) -> None:
    """Said are 1, 3 and 5 where gold is 1, 5 and nothing."""
    three = rows_of(logits, score=[1.0, 5.0, None])
    connection.register("three", three)
    (scores, errors), _ = predictions.against_gold([of(three, target).with_gold], {}, {})
    cells = [(row["gold score from"], row["score by the teacher from"], row["n"]) for row in scores.rows]
    last = 5 - 4 / charts.CELLS
    assert cells == [(1, 1, 1), (pytest.approx(last), pytest.approx(3), 1)]
    filled = {round(row["from"], 6): row["all rows"] for row in errors.rows if row["all rows"]}
    assert filled == {0.0: 1, -2.0: 1}
    assert predictions.limits_of(np.array([2.0, 2.0, np.nan], dtype=np.float32)) == (1.5, 2.5)  # equal scores have room
    found = FARTHEST.rows(connection, "three", target)
    assert [(row["source_row"], row["predicted"]) for row in found] == [(1, pytest.approx(3)), (0, pytest.approx(1))]


def test_changes_of_mind_by_hand(connection: duckdb.DuckDBPyConnection) -> None:
    """One of the first row's two variants changes the teacher's prediction to "no". The other changes nothing."""
    logits = [[0, log(3)], [log(3), 0], [0, log(3)]]
    kinds: dict[str, Sequence[object]] = {
        "source_row": [7, 7, 7],
        "variant": [0, 1, 2],
        "origin": ["original", "mask", "mask"],
    }
    connection.register("three", rows_of(logits, **kinds))
    (row,) = changed_mind(connection, "three", CLASSES)
    assert (row["origin"], row["n"], row["agreement"]) == ("mask", 2, 0.5)
    assert row["kl"] == pytest.approx(0.5 * log(3) / 2)  # 3/4 log 3 - 1/4 log 3, and 0
    answers = set_page._change(connection, "three", CLASSES).rows
    assert [(row["original row"], row["variant"], row["n"]) for row in answers] == [("yes", "no", 1), ("yes", "yes", 1)]
    connection.register("moved", rows_of([[1.0], [4.0], [2.0]], **kinds))
    assert changed_mind(connection, "moved", SCORE) == [{"origin": "mask", "n": 2, "moved": 2.0}]


def test_label_errors_of_a_large_set_are_looked_for_in_a_part(connection: duckdb.DuckDBPyConnection) -> None:
    """The third row is the suspect one of four; of every second row it is looked at, of every third it is not."""
    connection.register("four", FOUR)
    for every, suspects in ((2, [2]), (3, [])):
        found = LABEL_ERRORS.rows(connection, "four", CLASSES, every)
        assert [row["source_row"] for row in found] == suspects


@pytest.fixture(scope="module")
def opinion_page(opinion_set: ExampleSet) -> Page:
    return set_page.set_page(opinion_set.root)


@pytest.fixture(scope="module")
def augmented_page(augmented_set: ExampleSet) -> Page:
    return set_page.set_page(augmented_set.root)


def figures_of(page: Page) -> dict[tuple[str, str], Rows]:
    return {(figure["section"], figure["title"]): figure["rows"] for figure in page.figures()}


def test_the_page_of_a_set_says_what_numpy_says(opinion_set: ExampleSet, opinion_page: Page) -> None:
    table = opinion_set.read("validation", ("label", "logits"))
    logits_NC, label_N = logits_of(table, 2), table.column("label").to_numpy()
    answer_N = logits_NC.argmax(axis=1)
    p_NC = softmax(logits_NC.astype(np.float64), axis=1)
    html = render(opinion_page)
    scores = Parsed(html).tables["By split"]
    assert scores[1] == ["validation", "40", "2", f"{(answer_N == label_N).mean():.4f}"]
    assert scores[2][:2] == ["train", "96"]
    figures = figures_of(opinion_page)
    names = opinion_set.record.target.names
    confusion = figures["Split validation", "Confusion of the teacher"]
    expected = {(names[g], names[a]): int(((label_N == g) & (answer_N == a)).sum()) for g in (0, 1) for a in (0, 1)}
    assert {(row["gold"], row["teacher"]): row["n"] for row in confusion} == {k: n for k, n in expected.items() if n}
    margins = figures["Split validation", "Margin"]
    heights, _ = np.histogram(abs(p_NC[:, 0] - p_NC[:, 1]), bins=predictions.BINS, range=(0, 1))
    assert [row.get("wrong answers", 0) + row.get("right answers", 0) for row in margins] == heights.tolist()
    hardest = Parsed(html).tables["Hardest rows"]  # of train, which comes last
    train = softmax(logits_of(opinion_set.read("train", ("logits",)), 2).astype(np.float64), axis=1)
    assert hardest[1][0] == str(abs(train[:, 0] - train[:, 1]).argmin())


def test_a_page_needs_nothing_else_and_is_the_same_each_time(augmented_set: ExampleSet, augmented_page: Page) -> None:
    html = render(augmented_page)
    assert needs_nothing_else(html)
    assert "http" not in html
    again = set_page.set_page(augmented_set.root)
    assert render(again) == html
    assert again.figures() == augmented_page.figures()


def test_variants_are_told_of(augmented_set: ExampleSet, augmented_page: Page) -> None:
    record = augmented_set.record.augmentation
    assert record
    parsed = Parsed(render(augmented_page))
    (row,) = parsed.tables["How often the teacher's prediction changes"][1:]
    assert row[:2] == ["mask", str(record.rows)]
    assert len(parsed.tables["A few of them"]) == 1 + len(record.sample)
    counts = figures_of(augmented_page)["Variants of training rows", "Changed predictions"]
    assert sum(cell["n"] for cell in counts) == record.rows


def hostile_set(opinion_set: ExampleSet, folder: Path) -> Path:
    """A copy whose labels, teacher and texts mean harm."""
    root = Path(shutil.copytree(opinion_set.root, folder / "opinion"))
    shard = opinion_set.record.shards_of("validation")[0]
    table = pq.read_table(root / shard.path, partitioning=None)
    texts = pa.array(["<script>alert(2)</script>"] * table.num_rows)
    place = table.column_names.index("sentence1")
    table = table.set_column(place, table.schema.field("sentence1"), texts)
    write_examples(root / shard.path, table, footer_of(opinion_set.record, shard))
    values = read_record(root / FILE_NAME)
    for entry in values["shards"]:
        if entry["split"] == shard.split and entry["index"] == shard.index:
            path = root / shard.path
            entry |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    values["signals"]["logits"]["target"]["names"] = ["<script>alert(1)</script>", r"$\frac{$"]
    values["teacher"]["name"] = "<img src=x onerror=alert(3)>"
    (root / FILE_NAME).write_text(json.dumps(values))
    return root


def test_a_hostile_set_does_no_harm(opinion_set: ExampleSet, opinion_page: Page, tmp_path: Path) -> None:
    html = render(set_page.set_page(hostile_set(opinion_set, tmp_path)))
    assert needs_nothing_else(html)
    parsed = Parsed(html)
    assert {tag for tag, _ in parsed.tags} == {tag for tag, _ in Parsed(render(opinion_page)).tags}
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in html
    assert r"$\frac{$" in parsed.drawn


def test_a_changed_file_is_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    root = Path(shutil.copytree(opinion_set.root, tmp_path / "opinion"))
    path = root / opinion_set.record.shards[0].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=naming(f"{path.name}: ", "SHA-256")):
        set_page.set_page(root)


def test_only_a_verified_set_unless_that_is_allowed(
    opinion_set: ExampleSet, opinion_page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(opinion_set.root, tmp_path / "opinion"))
    write_set_record(root, changed(read_set_record(root), state="complete"))
    with pytest.raises(IntegrityError, match="--allow-unverified"):
        set_page.set_page(root)
    assert set_page.set_page(root, allow_unverified=True).figures() == opinion_page.figures()
    monkeypatch.setattr(set_page, "MOST_SORTED_ROWS", 20)
    assert "Only every 2th row" in render(set_page.set_page(root, allow_unverified=True))


@pytest.mark.parametrize(
    ("names", "headings"),
    [
        ([["message", "text"]], ["message", "sentence 2"]),
        ([["sentence1"], ["reply"]], ["sentence 1", "reply"]),
        ([["gold"], ["row"]], ["sentence 1", "sentence 2"]),
        (None, ["sentence 1", "sentence 2"]),
    ],
)
def test_texts_have_the_names_that_the_files_of_the_task_have(
    opinion_set: ExampleSet, names: list[list[str]] | None, headings: list[str]
) -> None:
    assert opinion_set.record.task is not None
    texts = None if names is None else tuple(map(tuple, names))
    task = opinion_set.record.task.model_copy(update={"text_columns": texts})
    record = opinion_set.record.model_copy(update={"task": task})
    assert predictions.text_headings(record) == dict(zip(headings, ("sentence1", "sentence2"), strict=True))
