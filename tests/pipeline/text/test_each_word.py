"""A text once for each of its words."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.word_pieces import with_each_word_replaced


def test_each_word_is_left_out_or_replaced_in_turn() -> None:
    assert list(with_each_word_replaced(" red  dog\tbarks")) == ["dog barks", "red barks", "red dog"]
    assert list(with_each_word_replaced("red, red dog", "[MASK]")) == [
        "[MASK] red dog",
        "red, [MASK] dog",
        "red, red [MASK]",
    ]
    assert list(with_each_word_replaced("alone")) == [""]
    assert list(with_each_word_replaced("   ")) == []


@given(st.text(alphabet="ab \n\u00a0", max_size=30))
def test_what_is_left_out_is_told_by_its_place(text: str) -> None:
    words = text.split()
    left = list(with_each_word_replaced(text))
    for place, (without, masked) in enumerate(zip(left, with_each_word_replaced(text, "#"), strict=True)):
        assert without.split() == words[:place] + words[place + 1 :]
        assert masked.split() == [*words[:place], "#", *words[place + 1 :]]
    assert len(left) == len(words)
