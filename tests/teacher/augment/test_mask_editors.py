"""Masking and replacement by part of speech, with a tagger and pools made by hand."""

import re
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import MissingDependencyError
from pipeline.tasks.task import MASK
from teacher.augment.editors import Edited, MaskPosEditor, Pools, Tagger, make_pools, pattern_tagger, words_in
from tests.helpers.messages import naming

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*textblob:ResourceWarning")
TAGS = {"dog": "NN", "cat": "NN", "fox": "NN", "sees": "VBZ", "bites": "VBZ", "the": "DT"}
TAGS |= {".": ".", "!": ".", "42": "CD", "7": "CD", "x": ":", "y": ":"}
NOUNS_AND_VERBS = Pools(
    ["dog", "cat", "fox", "sees", "bites"], {"NN": np.array([0] * 6 + [1] * 3 + [2]), "VBZ": np.array([3, 4])}
)


def tag(words: Sequence[str]) -> list[str]:
    return [TAGS[word] for word in words]


def edit(
    method: MaskPosEditor, texts: Sequence[str], rows: Sequence[int], variants: Sequence[int]
) -> list[list[Edited | None]]:
    return method.edit(texts, np.array(rows, dtype=np.int64), 0, np.array(variants, dtype=np.int64))


def many(method: MaskPosEditor, text: str, n: int) -> list[Edited | None]:
    return edit(method, [text], [0], range(1, n + 1))[0]


def is_about(count: int, n: int, share: float) -> bool:
    """Whether a count is within five standard deviations of what is expected."""
    return bool(abs(count - n * share) < 5 * np.sqrt(n * share * (1 - share)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't like well-made films, it's odd.", "I do n't like well-made films , it 's odd ."),
        ("we do n't know , it 's fine", "we do n't know , it 's fine"),
        ("They\u2019LL say \u201ccan\u2019t\u201d", "They \u2019LL say \u201c ca n\u2019t \u201d"),
        ("caf\u00e9 42nd $5", "caf\u00e9 42nd $ 5"),
        (" \t\n", ""),
    ],
)
def test_words_and_punctuation_marks_as_the_treebank_has_them(text: str, words: str) -> None:
    assert [text[slice(*span)] for span in words_in(text)] == words.split()


def test_pools_hold_each_word_as_often_as_it_occurs() -> None:
    pools = make_pools(["the dog sees the cat .", "the dog bites 42 7 !", "dog", "x y", ""], tag)
    found = {tag: Counter(pools.words[number] for number in numbers) for tag, numbers in pools.numbers.items()}
    # left out: DT, which leaves no choice; words without letters; tags without letters
    assert found == {"NN": {"dog": 3, "cat": 1}, "VBZ": {"sees": 1, "bites": 1}}


def test_a_word_is_drawn_by_its_frequency_among_those_of_its_tag() -> None:
    n = 8000
    texts = Counter(
        part.text for part in many(MaskPosEditor(0, 0.99, 0, 1, tag, NOUNS_AND_VERBS), "cat the", n) if part
    )
    # "the" has no pool and is kept, so that no variant is given up; the word itself may be drawn again
    shares = {"dog the": 0.99 * 0.6, "cat the": 0.99 * 0.3 + 0.01, "fox the": 0.99 * 0.1}
    assert texts.keys() == shares.keys()
    for text, share in shares.items():
        assert is_about(texts[text], n, share), text


def test_what_is_drawn_again_counts_as_unchanged() -> None:
    for part in many(MaskPosEditor(0, 0.9, 0, 1, tag, NOUNS_AND_VERBS), "the dog sees the cat", 300):
        assert part is not None
        differences = sum(a != b for a, b in zip(part.text.split(), ["the", "dog", "sees", "the", "cat"], strict=True))
        assert (part.changed, part.words) == (differences, 5)
        assert part.kinds == ({"pos"} if differences else set())


def test_mask_comes_before_part_of_speech() -> None:
    n, text = 8000, "dog the"
    both = many(MaskPosEditor(0.2, 0.3, 0, 1, tag, NOUNS_AND_VERBS), text, n)
    masks = many(MaskPosEditor(0.2, 0, 0, 1), text, n)
    wider = many(MaskPosEditor(0.5, 0, 0, 1), text, n)
    first = [[part.text.split()[0] if part else "given up" for part in parts] for parts in (both, masks, wider)]
    for one, mask, wide in zip(*first, strict=True):
        if "given up" in (one, mask, wide):  # "the" is masked, too
            continue
        assert (one == MASK) == (mask == MASK)  # below 0.2: masked, whatever the other probability is
        if one != "dog":
            assert wide == MASK  # below 0.5: one of the two
    assert is_about(sum(word == MASK for word in first[0]), n, 0.2 * 0.8)
    assert is_about(sum(word in ("cat", "fox") for word in first[0]), n, 0.3 * 0.4 * 0.8)


@pytest.mark.parametrize("probability", [0.1, 0.4])
def test_each_word_is_masked_as_often_as_it_should(probability: float) -> None:
    n, text = 4000, "dog cat fox"
    parts = many(MaskPosEditor(probability, 0, 0, 1), text, n)
    given_up = sum(part is None for part in parts)
    assert is_about(given_up, n, probability**3)
    for place in range(3):
        hits = sum(part.text.split()[place] == MASK for part in parts if part)
        assert is_about(hits + given_up, n, probability)


def test_tags_are_those_of_the_original_words() -> None:
    asked: list[list[str]] = []

    def listening(words: Sequence[str]) -> list[str]:
        asked.append(list(words))
        return tag(words)

    many(MaskPosEditor(0.4, 0.4, 0, 1, listening, NOUNS_AND_VERBS), "the dog sees the cat .", 50)
    assert asked == [["the", "dog", "sees", "the", "cat", "."]]


def test_a_variant_without_a_word_left_as_it_was_is_given_up() -> None:
    parts = many(MaskPosEditor(0.5, 0.49, 0, 1, tag, NOUNS_AND_VERBS), "dog sees", 3000)
    assert is_about(sum(part is None for part in parts), 3000, 0.99**2)  # a word drawn again is hit, too
    for part in parts:
        assert part is None or part.text.split()[0] == "dog" or part.text.split()[1] == "sees"
    assert many(MaskPosEditor(0.5, 0, 0, 1), "", 3) == [None] * 3
    assert {part.text for part in many(MaskPosEditor(0.5, 0, 0, 1), "dog", 99) if part} == {"dog"}


def test_what_is_kept_stays_as_it_was_written() -> None:
    text = ' He  said\t"GOOD" dogs ,don\'t\u00a0bark! '
    pattern, end = "", 0
    for start, stop in words_in(text):
        pattern += re.escape(text[end:start]) + rf"(?:{re.escape(text[start:stop])}| ?\[MASK\] ?)"
        end = stop
    pattern += re.escape(text[end:])
    found = {part.text for part in many(MaskPosEditor(0.15, 0, 0, 1), text, 400) if part}
    assert text in found
    assert len(found) > 100
    assert all(re.fullmatch(pattern, variant) for variant in found)


def test_a_mask_stays_apart_from_a_contractions_rest() -> None:
    texts = {part.text for part in many(MaskPosEditor(0.4, 0, 0, 1), "Don't go, it's", 500) if part}
    assert {"[MASK] n't go, it's", "Do [MASK] go, it's", "Don't go, [MASK]'s", "Don't go, it [MASK]"} <= texts
    assert {"Don't [MASK], it's", "Don't go [MASK] it's"} <= texts
    assert {"[MASK] [MASK] go, it's", "Don't go, [MASK] [MASK]", "Don't [MASK] [MASK] it's"} <= texts


def test_a_cut_leaves_one_to_five_words_in_a_row() -> None:
    text, n = "a b, c d e f g h", 4000
    parts = [part for part in many(MaskPosEditor(0, 0, 1, 1), text, n) if part]
    assert len(parts) == n
    lengths, starts = Counter[int](), Counter[str]()
    for part in parts:
        assert part.text in text
        assert part == Edited(part.text, frozenset({"ngram"}), 0, len(words_in(part.text)))
        lengths[len(words_in(part.text))] += 1
        starts[part.text[0]] += len(words_in(part.text)) == 5
    assert lengths.keys() == {1, 2, 3, 4, 5}
    assert all(is_about(count, n, 0.2) for count in lengths.values())
    assert all(is_about(starts[word], n, 0.2 / 5) for word in "ab,cd")  # 9 words have 5 places for 5
    assert sum(starts.values()) == lengths[5]


def test_a_short_text_is_cut_to_no_more_than_it_has() -> None:
    found = Counter(part.text for part in many(MaskPosEditor(0, 0, 1, 1), " dog cat ", 1000) if part)
    assert found.keys() == {"dog", "cat", "dog cat"}
    assert is_about(found["dog cat"], 1000, 0.8)


def test_a_cut_keeps_the_masks_inside_and_needs_a_word_left() -> None:
    text, n = "dog cat fox dog cat fox dog cat fox dog", 8000
    whole = many(MaskPosEditor(0.2, 0, 0, 1), text, n)
    parts = many(MaskPosEditor(0.2, 0, 0.25, 1), text, n)
    all_hit = sum(0.2**length for length in (1, 2, 3, 4, 5)) / 5
    assert is_about(sum(part is None for part in parts), n, 0.25 * all_hit)
    cut = [(part, plain) for part, plain in zip(parts, whole, strict=True) if part and plain and part.words < 10]
    assert is_about(len(cut), n, 0.25 * (1 - all_hit))
    for part, plain in cut:
        words = part.text.split()
        assert f" {part.text} " in f" {plain.text} "
        assert (part.changed, part.words) == (words.count(MASK), len(words))
        assert part.kinds == ({"mask"} if part.changed else {"ngram"})
    assert all(part == plain for part, plain in zip(parts, whole, strict=True) if part and part.words == 10)


@given(
    seed=st.integers(0, 5),
    rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    variants=st.lists(st.integers(1, 2**19), min_size=1, max_size=5),
    side=st.integers(0, 1),
)
def test_a_variant_depends_on_seed_row_number_and_side_alone(
    seed: int, rows: list[int], variants: list[int], side: int
) -> None:
    method = MaskPosEditor(0.3, 0.3, 0.3, seed, tag, NOUNS_AND_VERBS)
    texts = [("the dog sees the fox .", "cat bites", "")[row % 3] for row in rows]

    def ask(texts: list[str], rows: list[int], variants: list[int]) -> list[list[Edited | None]]:
        return method.edit(texts, np.array(rows), side, np.array(variants))

    alone = [[ask([text], [row], [v])[0][0] for v in variants] for text, row in zip(texts, rows, strict=True)]
    assert ask(texts, rows, variants) == alone


def test_seeds_rows_sides_and_texts_have_draws_of_their_own() -> None:
    text, variants = "dog cat fox dog", np.arange(1, 60)
    one, other = (MaskPosEditor(0.3, 0, 0, seed) for seed in (0, 1))
    draws = [one.edit([text], np.array([row]), side, variants)[0] for row, side in ((0, 0), (1, 0), (0, 1))]
    draws.append(other.edit([text], np.array([0]), 0, variants)[0])
    assert all(first != second for n, first in enumerate(draws) for second in draws[:n])


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    name, tagger = pattern_tagger()
    assert re.fullmatch(r"textblob [\d.]+ PatternTagger", name)
    return tagger


def test_textblob_knows_a_plain_sentence(tagger: Tagger) -> None:
    words = ["The", "old", "dog", "barks", ",", "and", "we", "do", "n't", "sleep", "."]
    assert tagger(words) == ["DT", "JJ", "NN", "VBZ", ",", "CC", "PRP", "VBP", "RB", "VB", "."]


@given(text=st.text(max_size=40) | st.text("ab /'n.t-_&;sl\u201c\u2019\n\tA1<>:)(", max_size=40))
def test_textblob_gives_one_tag_a_word_of_any_text(tagger: Tagger, text: str) -> None:
    words = [text[slice(*span)] for span in words_in(text)]
    assert len(tagger(words)) == len(words)


def test_curly_quotes_are_tagged_as_straight_ones(tagger: Tagger) -> None:
    curly, straight = (f"she says {a} hello {b}".split() for a, b in ("\u201c\u201d", '""'))
    assert tagger(curly) == tagger(straight)


def test_without_textblob_extra_and_flag_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("textblob", "textblob.en", "textblob.en.taggers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=naming("'distill-offline[augment]'", "--pos-probability 0")):
        pattern_tagger()
