"""Which words may be replaced, and how the rest of a text stays as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import BertPreTokenizer

from teacher.augment.editors import STOP_WORDS, in_case_of, replaceable, spliced


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a GREAT film , but dull", "GREAT film dull"),
        ("it never rains", "never rains"),  # not on the stop list of TinyBERT's code either
        ("not great , No way , very few", "great way"),
        ("in 1999 the 3rd man met r2d2", "man met"),
        ("a café in tokyo", "tokyo"),
        ("the dogs' food", "dogs food"),
        ("we don't know", "know"),
        ("we do n't know", "know"),
        ("they ca n't swim", "swim"),
        ("and it 's odd", "odd"),
        ("the dog's tail", "dog tail"),
        ("the dog 's tail", "dog tail"),
        ("we won\u2019t fly", "fly"),
        ("they 'll see , doesn 't she", "see"),
        ("at five o'clock", "five"),
        ("DON'T GO , HE 'S MAD", "GO MAD"),
        ("they say 'great' films", "say great films"),
        ("trees I'd've known", "trees known"),
        ("", ""),
    ],
)
def test_parts_of_contractions_are_never_replaced(text: str, expected: str) -> None:
    spans = [span for _, span in BertPreTokenizer().pre_tokenize_str(text)]
    assert [text[slice(*span)] for span in sorted(replaceable(text, spans))] == expected.split()


def test_a_word_with_a_hyphen_is_none_of_letters_only() -> None:
    assert replaceable("well-made", [(0, 9), (5, 9)]) == {(5, 9)}


@pytest.mark.parametrize("letter", ["\u017f", "\u212a", "\u0130", "\u0131"])
def test_letters_that_only_fold_to_ascii_are_not_a_to_z(letter: str) -> None:
    assert not replaceable(f"wor{letter}d", [(0, 5)])


def test_negations_are_stop_words() -> None:
    assert {"no", "not", "nor", "cannot", "few", "but", "more"} <= STOP_WORDS


texts = st.text("ab\u00e9\"'\t ,\U0001f600", max_size=6)


@given(first=texts, parts=st.lists(st.tuples(texts, texts, texts), max_size=6))
def test_what_lies_between_replaced_words_stays_as_it_was(first: str, parts: list[tuple[str, str, str]]) -> None:
    text = expected = first
    places = []
    for old, new, gap in parts:
        places.append(((len(text), len(text) + len(old)), new))
        text, expected = text + old + gap, expected + new + gap
    assert spliced(text, places) == expected


def test_spacing_case_quotes_and_tabs_survive() -> None:
    text = ' He  said\t"GOOD"\u00a0day ! '
    assert spliced(text, [((11, 15), "BAD")]) == ' He  said\t"BAD"\u00a0day ! '
    assert spliced(text, []) == text


@pytest.mark.parametrize(
    ("word", "other", "expected"),
    [
        ("fine", "Great", "Fine"),
        ("fine", "GREAT", "FINE"),
        ("fine", "great", "fine"),
        ("fine", "A", "Fine"),
        ("fine", "gReat", "fine"),
        ("Paris", "london", "Paris"),
        (".", "Great", "."),
    ],
)
def test_case_is_restored(word: str, other: str, expected: str) -> None:
    assert in_case_of(word, other) == expected
