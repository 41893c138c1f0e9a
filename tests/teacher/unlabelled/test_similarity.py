"""Which sentences are paired: known answers and properties."""

import math
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources import Source
from teacher.unlabelled import choose_rows, neighbours, similar

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
