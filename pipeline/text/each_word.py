"""A text once for each of its words: what teachers and students are asked to find which of them matter.

A word is what stands between spaces, as in the page that `distill serve` shows.
"""

from collections.abc import Iterator


def with_each_word_replaced(text: str, instead: str = "") -> Iterator[str]:
    """The text with its first word replaced, then with its second one alone, and so on.

    Args:
        text: any text.
        instead: what stands in the word's place; empty to leave the word out.
    """
    words = text.split()
    for place in range(len(words)):
        yield " ".join([*words[:place], *([instead] if instead else []), *words[place + 1 :]])
