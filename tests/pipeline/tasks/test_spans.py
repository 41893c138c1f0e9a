"""Spans of words and their scores, against those worked out by hand and by the definition of a span."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.arrays import Ragged
from pipeline.tasks.spans import Span, begins_inside, scores_by_span, spans, word_intervals, word_scores, word_tallies

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LABELS = st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=8)
PAIRS = st.lists(
    LABELS.flatmap(
        lambda gold: st.tuples(st.just(gold), st.lists(st.integers(0, 4), min_size=len(gold), max_size=len(gold)))
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O", [Span(0, 2, "PER")]),
        ("B-PER B-PER", [Span(0, 1, "PER"), Span(1, 2, "PER")]),
        ("B-PER I-LOC", [Span(0, 1, "PER"), Span(1, 2, "LOC")]),
        ("O I-LOC I-LOC", [Span(1, 3, "LOC")]),
        ("I-PER B-PER I-PER", [Span(0, 1, "PER"), Span(1, 3, "PER")]),
    ],
)
def test_spans_are_found(labels: str, expected: list[Span]) -> None:
    assert spans(labels.split()) == expected
    assert begins_inside(labels.split()) == any(labels.split()[span.start][0] == "I" for span in expected)


def test_scores_by_hand() -> None:
    gold = Ragged.of([[1, 2, 0], [3], [0, 0]])
    said = Ragged.of([[1, 2, 0], [1], [0, 3]])
    tallies = word_tallies(NAMES, said, gold)
    # right 1 (PER), predicted 3, gold 2. Right words: 3 + 0 + 1 of 6
    assert word_scores(("span_f1", "accuracy"), tallies) == pytest.approx({"span_f1": 2 / 5, "accuracy": 4 / 6})
    assert scores_by_span(NAMES, tallies) == {
        "PER": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "gold": 1, "predicted": 2},
        "LOC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "gold": 1, "predicted": 1},
    }
    low, high = word_intervals(("accuracy",), tallies)["accuracy"]
    assert 0 <= low < 4 / 6 < high <= 1


def test_without_a_sentence_there_are_no_scores() -> None:
    tallies = word_tallies(NAMES, Ragged.of([]), Ragged.of([]))
    assert not word_scores(("span_f1",), tallies)
    assert not word_intervals(("span_f1",), tallies)


def spans_by_definition(labels: list[str]) -> set[tuple[int, int, str]]:
    """Every run of words that is a span by CoNLL's definition, found by trying all."""

    def is_inside(word: int, name: str) -> bool:
        return word < len(labels) and labels[word] == f"I-{name}"

    def starts(word: int, name: str) -> bool:
        continues = word > 0 and labels[word - 1] in {f"B-{name}", f"I-{name}"}
        return labels[word] == f"B-{name}" or (is_inside(word, name) and not continues)

    return {
        (first, stop, name)
        for first, name in product(range(len(labels)), ("PER", "LOC"))
        for stop in range(first + 1, len(labels) + 1)
        if starts(first, name) and all(is_inside(word, name) for word in range(first + 1, stop))
        if not is_inside(stop, name)
    }


@settings(max_examples=50)
@given(PAIRS)
def test_scores_by_definition(rows: list[tuple[list[int], list[int]]]) -> None:
    gold, said = ([[NAMES[k] for k in row] for row in side] for side in zip(*rows, strict=True))
    right = total = 0
    for ours, theirs in zip(map(spans_by_definition, said), map(spans_by_definition, gold), strict=True):
        right, total = right + len(ours & theirs), total + len(ours) + len(theirs)
    words = [a == b for row in zip(gold, said, strict=True) for a, b in zip(*row, strict=True)]
    tallies = word_tallies(NAMES, *(Ragged.of(side) for side in reversed([*zip(*rows, strict=True)])))
    expected = {"span_f1": 2 * right / total if total else 0.0, "accuracy": sum(words) / len(words)}
    assert word_scores(("span_f1", "accuracy"), tallies) == pytest.approx(expected)
