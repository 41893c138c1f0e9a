"""What counts as a near copy, and which rows are in a group: known answers and properties."""

import string
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.near_copies import groups_of, groups_of_values, letters, near_copies, normalized, words_of

DEV = "it 's a charming and often affecting journey through the past ."
WORD = st.text(string.ascii_lowercase, min_size=1, max_size=3)
TEXT = st.lists(WORD, max_size=14).map(" ".join)


def copies(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    found = near_copies(*(normalized(pa.array(part, pa.string())) for part in (texts, others)))
    return [bool(is_one) for is_one in found]


def is_copy(text: str, *others: str) -> bool:
    return copies([text], others or (DEV,))[0]


def together(*texts: str) -> list[list[str]]:
    """The groups of texts, those of one text left out."""
    group_N = groups_of(pa.table({"sentence1": list(texts)}))
    groups = [
        [text for text, its in zip(texts, group_N, strict=True) if its == number] for number in np.unique(group_N)
    ]
    return sorted(group for group in groups if len(group) > 1)


@pytest.mark.parametrize(
    "text",
    [
        DEV,
        "IT'S A CHARMING, and often affecting,  journey through the past!",
        "Its a charming and often affecting journey through the Past",
        "it 's a charming and often affecting journey to the past",  # 4 of 7 phrases are left
        "affecting journey through the past",  # a part of it, one phrase
        f"a friend of mine said yesterday that {DEV} i did not believe a word of it, nor did anybody else",
    ],
)
def test_near_copies_are_found(text: str) -> None:
    assert is_copy(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "journey through the past",  # a part of fewer than five words
        "a dull and often tiresome journey through the past and beyond",
        "she says it 's a charming and often boring film about love",  # 2 of 8
        "past the through journey affecting often and charming a s it",  # the same words in another order
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not is_copy(text)


def test_half_of_the_phrases_of_the_text_with_fewer_is_enough() -> None:
    eight = "a b c d e f g h"  # four phrases
    assert is_copy("a b c d e f x y", eight)  # two
    assert not is_copy("a b c d e x y z", eight)  # one
    assert is_copy("a b c d e x", eight)  # one of two
    assert is_copy("a b c d", "A b, c-d!")  # without a phrase, but the same letters
    assert not is_copy("a b c d e a b c d e", "a b c d e v w x y z")  # one phrase, twice


def test_spelling_is_no_difference() -> None:
    spelt = ["Don't do\u00a0this", "do n't do this", "\uff24\uff2f\uff2e\uff34 do this", "—", "", "Ünïcode 42"]
    alike = normalized(pa.array(spelt))
    assert letters(alike).to_pylist() == ["dontdothis"] * 3 + ["", "", "ünïcode42"]
    words = words_of(alike)
    assert words.count_N.tolist() == [4, 5, 3, 0, 0, 2]
    assert words.flat.to_pylist()[:4] == ["don", "t", "do", "this"]
    assert words.text_W.tolist() == [0] * 4 + [1] * 5 + [2] * 3 + [5] * 2


def phrases(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[k : k + 5]) for k in range(len(words) - 4)}


def near_by_hand(text: str, other: str, among: Sequence[str]) -> bool:
    if "".join(text.split()) == "".join(other.split()):
        return True
    different = {"".join(one.split()): one for one in reversed(among)}.values()
    one, two = (
        {phrase for phrase in phrases(part) if sum(phrase in phrases(all_) for all_ in different) <= 2}
        for part in (text, other)
    )
    return bool(one & two) and len(one & two) >= min(len(one), len(two)) / 2


@given(st.lists(TEXT, max_size=6), st.lists(TEXT, max_size=6), st.data())
def test_the_rule_is_that_of_sets_of_phrases(texts: list[str], others: list[str], data: st.DataObject) -> None:
    if others:  # some that have much in common
        parts = [data.draw(st.sampled_from(others)).split() for _ in range(4)]
        texts = [*texts, *(" ".join([*parts[k][: 2 * k], "new", *parts[k][2 * k + 1 :]]) for k in range(4))]
    expected = [any(near_by_hand(text, other, [*others, *texts]) for other in others) for text in texts]
    assert copies(texts, others) == expected


@given(st.lists(WORD, min_size=8, max_size=20), st.data())
def test_it_is_symmetrical_and_of_itself_true(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    other = " ".join(data.draw(st.permutations(words)))
    assert is_copy(text.upper(), text)
    assert is_copy(text, other) == is_copy(other, text)


def test_more_texts_than_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.text.near_copies.TEXTS_AT_ONCE", 2)
    texts = ["x", DEV, "y", "z", f"so {DEV}"]
    assert copies(texts, [DEV]) == [False, True, False, False, True]
    assert together(*texts) == [[DEV, f"so {DEV}"]]


def test_phrases_of_form_letters_do_not_count() -> None:
    def letters_to(names: int) -> list[str]:
        return [f"dear customer {k} thank you for your order of item {k * 7} it will arrive" for k in range(names)]

    assert not any(copies(letters_to(40)[20:], letters_to(40)[:20]))
    assert together(*letters_to(40)) == []
    assert together(*letters_to(40), f"{letters_to(40)[3]} soon") == [[letters_to(40)[3], f"{letters_to(40)[3]} soon"]]


def test_a_group_has_near_copies_of_near_copies_and_emojis_are_texts() -> None:
    words = [f"w{k}" for k in range(14)]
    chain = [" ".join(words[k : k + 8]) for k in (0, 2, 4)]
    others = [f"another text of its own number {k}" for k in "abcdefgh" for _ in range(8) for k in [k * 5 + str(_)]]
    assert not is_copy(chain[0], chain[2], *others)
    assert together(*chain, *others) == [chain]
    assert together("👍", "👍 ", "👎", "", *others) == [["👍", "👍 "]]


def test_a_group_of_more_than_a_twentieth_of_the_rows_is_divided_but_copies_stay() -> None:
    words = [f"w{k}" for k in range(40)]
    windows = [" ".join(words[k : k + 6]) for k in range(30)]
    assert together(*windows, windows[0].upper()) == [[windows[0], windows[0].upper()]]


def test_a_text_of_more_than_a_twentieth_of_the_rows_is_common_on_all_sides() -> None:
    others = [f"number {k}" for k in range(100)]
    assert together(*others, *["thanks"] * 5) == [["thanks"] * 5]
    assert together(*others, *["thanks"] * 6) == []


def test_pairs_are_compared_as_a_whole() -> None:
    first, second = "a b c d e f", ["1 2 3 4 5 6 7 8 9", "9 8 7 6 5 4 3 2 1"]
    rows = {"sentence1": [first] * 2 + ["x"] * 40, "sentence2": second + [f"y{k}" for k in range(40)]}
    assert len(np.unique(groups_of(pa.table(rows)))) == 42
    rows["sentence2"][1] = "1 2 3 4 5 6 7 8 8"
    assert len(np.unique(groups_of(pa.table(rows)))) == 41


def test_lists_of_words_are_texts() -> None:
    rows = [DEV.split(), ["Its", *DEV.split()[2:]], ["other"]]
    assert np.unique(groups_of(pa.table({"sentence1": rows, "sentence2": pa.nulls(3)}))).size == 2


@pytest.mark.parametrize("values", [["a", None, "b", " a", " ", ""], [1.0, float("nan"), 2.0, 1.0, None, float("nan")]])
def test_equal_values_are_a_group_and_a_row_without_one_is_alone(values: list[str | float | None]) -> None:
    group_N = groups_of_values(pa.array(values, from_pandas=False))
    assert group_N[0] == group_N[3]
    assert len(np.unique(group_N)) == 5
