"""What counts as a near copy, and which sentences are paired: known answers and properties."""

import math
import string
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources import Source
from teacher.unlabelled import choose_rows, letters, near_copies, neighbours, normalized, similar, words_of

DEV = "it 's a charming and often affecting journey through the past ."
WORD = st.text(string.ascii_lowercase, min_size=1, max_size=3)
TEXT = st.lists(WORD, max_size=14).map(" ".join)


def copies(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    found = near_copies(*(normalized(pa.array(part, pa.string())) for part in (texts, others)))
    return [bool(is_one) for is_one in found]


def is_copy(text: str, *others: str) -> bool:
    return copies([text], others or (DEV,))[0]


@pytest.mark.parametrize(
    "text",
    [
        DEV,
        "IT'S A CHARMING, and often affecting,  journey through the past!",
        "Its a charming and often affecting journey through the Past",
        "it 's a charming and often affecting voyage through the past",  # 6 of 9 trigrams are left
        "charming and often affecting journey through the past",  # a part of it, 8 words
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
        "journey through the past",  # a part of fewer than eight words
        "a dull and often tiresome journey through the city and beyond",  # 1 of 8
        "past the through journey affecting often and charming a s it",  # the same words in another order
        "charming often journey past it affecting through the a and s",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not is_copy(text)


def test_half_of_the_shorter_ones_trigrams_is_enough() -> None:
    eight = "a b c d e f g h"  # six trigrams
    assert is_copy("a b c d e x y z", eight)  # three
    assert not is_copy("a b c d w x y z", eight)  # two
    assert not is_copy("a b c d e x y", eight)  # the shorter one has seven words
    assert is_copy("a b c d e", "A b, c-d e!")  # but then the same words are


def test_a_trigram_that_is_repeated_counts_once() -> None:
    assert not is_copy("a b c a b c a b c a b c", "a b c x y z p q r s")


def test_spelling_is_no_difference() -> None:
    spelt = ["Don't do\u00a0this", "do n't do this", "\uff24\uff2f\uff2e\uff34 do this", "—", "", "Ünïcode 42"]
    alike = normalized(pa.array(spelt))
    assert letters(alike).to_pylist() == ["dontdothis"] * 3 + ["", "", "ünïcode42"]
    words = words_of(alike)
    assert words.count_N.tolist() == [4, 5, 3, 0, 0, 2]
    assert words.flat.to_pylist()[:4] == ["don", "t", "do", "this"]
    assert words.text_W.tolist() == [0] * 4 + [1] * 5 + [2] * 3 + [5] * 2


def shared_by_hand(text: str, other: str) -> bool:
    one, two = text.split(), other.split()
    if "".join(one) == "".join(two):
        return True
    shorter = min(len(one), len(two)) - 2
    trigrams = [{tuple(words[k : k + 3]) for k in range(len(words) - 2)} for words in (one, two)]
    return shorter >= 6 and len(trigrams[0] & trigrams[1]) >= shorter / 2


@given(st.lists(TEXT, max_size=6), st.lists(TEXT, max_size=6), st.data())
def test_the_rule_is_that_of_sets_of_trigrams(texts: list[str], others: list[str], data: st.DataObject) -> None:
    if others:  # some that have much in common
        parts = [data.draw(st.sampled_from(others)).split() for _ in range(4)]
        texts = [*texts, *(" ".join([*parts[k][:k], "new", *parts[k][k + 1 :]]) for k in range(4))]
    expected = [any(shared_by_hand(text, other) for other in others) for text in texts]
    assert copies(texts, others) == expected


@given(st.lists(WORD, min_size=8, max_size=20), st.data())
def test_it_is_symmetrical_and_of_itself_true(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    other = " ".join(data.draw(st.permutations(words)))
    assert is_copy(text.upper(), text)
    assert is_copy(text, other) == is_copy(other, text)


def test_more_texts_than_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teacher.unlabelled.TEXTS_AT_ONCE", 2)
    texts = ["x", DEV, "y", "z", DEV.upper()]
    assert copies(texts, [DEV]) == [False, True, False, False, True]


SENTENCES = [
    "the zebra ate green grass",
    "the cat slept",
    "The zebra ate green hay",
    "the dog slept all day",
    "a green door",
    "nothing in common",
]


def unordered(pairs: tuple[list[str], list[str]]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in zip(*pairs, strict=True)}


def test_neighbours_stay_within_their_text() -> None:
    documents = [["a", "b", "c"], [], ["d"], ["e", "f"]]
    assert neighbours(documents) == (["a", "b", "e"], ["b", "c", "f"])


def test_each_sentence_meets_the_most_similar_one() -> None:
    assert unordered(similar(SENTENCES, 1)) == {
        frozenset({SENTENCES[0], SENTENCES[2]}),
        frozenset({SENTENCES[1], SENTENCES[3]}),
        frozenset({SENTENCES[4], SENTENCES[0]}),  # as like as the hay, and earlier
    }


def test_words_of_many_sentences_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teacher.unlabelled.MOST_SENTENCES", 2)
    assert unordered(similar(SENTENCES, 1)) == {
        frozenset({SENTENCES[0], SENTENCES[2]}),
        frozenset({SENTENCES[1], SENTENCES[3]}),
    }


def test_the_same_text_is_no_pair_of_its_own() -> None:
    assert similar(["one zebra", "One zebra!", "two cats"], 1) == ([], [])
    assert similar([], 1) == ([], [])


def test_which_comes_first_is_drawn() -> None:
    sentences = [f"{animal} number {k}" for k in range(2) for animal in string.ascii_lowercase]
    orders = [similar(sentences, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert unordered(orders[0]) == unordered(orders[2])
    first_is_earlier = [a < b for a, b in zip(*orders[0], strict=True)]
    assert 3 < sum(first_is_earlier) < 23


def by_hand(sentences: list[str]) -> set[frozenset[str]]:
    words = [set(sentence.split()) for sentence in sentences]
    found = {word: sum(word in w for w in words) for word in set().union(*words)}
    weight = {word: round(1024 * math.log(len(sentences) / count)) for word, count in found.items()}
    pairs = set()
    for k, one in enumerate(words):
        alike = [
            2 * sum(weight[w] for w in one & two) / max(1, sum(weight[w] for w in one) + sum(weight[w] for w in two))
            for two in words
        ]
        alike[k] = 0
        if max(alike):
            pairs.add(frozenset({sentences[k], sentences[alike.index(max(alike))]}))
    return pairs


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5).map(" ".join), min_size=1, max_size=12))
def test_likeness_is_that_of_the_docstring(sentences: list[str]) -> None:
    kept = {sentence.replace(" ", ""): sentence for sentence in reversed(sentences)}
    distinct = [s for k, s in enumerate(sentences) if s == kept[s.replace(" ", "")] and s not in sentences[:k]]
    assert unordered(similar(sentences, 3)) == by_hand(distinct)


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("added", [[], ["!"], ["four five"]])
@pytest.mark.parametrize("dev", [[], ["three"]])
@pytest.mark.parametrize("own", [[], ["one two"]])
def test_tables_without_rows_are_tables(own: list[str], dev: list[str], added: list[str], is_pair: bool) -> None:
    def table(texts: list[str]) -> pa.Table:
        first = pa.array(texts, pa.string())
        return pa.table({"sentence1": first, "sentence2": first if is_pair else pa.nulls(len(texts), pa.string())})

    source = Source("rows", {"train": table(own), "validation": table(dev)}, [])
    chosen_N, counts = choose_rows(source, table(added))
    assert chosen_N.tolist() == [text != "!" for text in added]
    assert counts == {"empty": added.count("!"), "near_dev": 0, "repeated": 0}
    assert similar(added, 0) == ([], [])
