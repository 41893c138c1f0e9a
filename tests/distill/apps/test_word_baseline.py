"""The features of the baseline of labelled words."""

import pytest

from distill.apps.word_baseline import shape_of, word_features


def test_a_word_has_its_neighbours_affixes_and_shape() -> None:
    first, last = word_features(["Ada", "ran"])
    around = {"0:", "1:", "2:ada", "3:ran", "4:"}
    assert set(first) == around | {"A-", "Ad-", "Ada-", "-a", "-da", "-Ada", "=Xx"}
    assert {"0:", "1:ada", "2:ran", "3:", "4:"} < set(last)


@pytest.mark.parametrize(("word", "shape"), [("McNeal", "XxXx"), ("2019-05", "9-9"), ("...", "."), ("Ünder", "Xx")])
def test_a_shape_has_one_sign_for_several_in_a_row(word: str, shape: str) -> None:
    assert shape_of(word) == shape
