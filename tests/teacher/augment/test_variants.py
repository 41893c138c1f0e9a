"""Which sentences a variant changes, beside which others it stands, and what it is called."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.arrays import Ragged
from pipeline.tasks.task import MASK
from teacher.augment.editors import MaskPosEditor, Sites, TinyBertEditor, make_pools
from teacher.augment.methods import BOTH, FIRST, SECOND, Editor, MaskPos, Sides, TinyBert
from teacher.augment.variants import SCHEMA, make_variants

SINGLES = ["A red dog .", ' it\u2019s "big"\tand  RED ', ""]
PAIRS = [("red dog", "red cat"), ("a dog", "one dog is"), ("dog", "")]


def rows_of(first: Sequence[str], second: Sequence[str] | None = None) -> pa.Table:
    numbers = pa.array(range(len(first)), pa.int64())
    seconds = pa.nulls(len(first), pa.string()) if second is None else pa.array(second)
    return pa.table({"source_row": numbers, "sentence1": pa.array(first), "sentence2": seconds})


PAIR_ROWS = rows_of(*zip(*PAIRS, strict=True))


def tinybert(texts: Sequence[str], numbers_NS: Sequence[Sequence[int]], probability: float = 1.0) -> TinyBertEditor:
    """Replaces "red" by "blue" and "dog" by "cat", wherever they are first."""
    words = ["blue", "cat"]
    found = [[(text.lower().find(old), n) for n, old in enumerate(("red", "dog"))] for text in texts]
    sites = [sorted((place, place + 3, n) for place, n in row if place >= 0) for row in found]
    start, stop = (Ragged.of([[site[k] for site in row] for row in sites]) for k in (0, 1))
    choices = Ragged.of([[site[2]] for row in sites for site in row])
    return TinyBertEditor(Sites(start, stop, choices, words), np.array(numbers_NS), probability, 0)


def made(rows: pa.Table, method: Editor, sides: Sides) -> list[tuple[Any, ...]]:
    table = make_variants(rows, method, sides)
    assert table.schema == SCHEMA
    return [tuple(row.values()) for row in table.to_pylist()]


def test_which_sentences_the_variants_change() -> None:
    for method, is_pair, expected in [
        (TinyBert(), False, (FIRST,) * 4),
        (TinyBert(pairs="both"), False, (FIRST,) * 4),
        (MaskPos(), False, (FIRST,) * 4),
        (TinyBert(), True, (FIRST,) * 4 + (SECOND,) * 4),
        (TinyBert(pairs="both"), True, (BOTH,) * 4),
        (MaskPos(), True, (FIRST, SECOND, BOTH, FIRST)),  # goes round
    ]:
        assert method.sides(is_pair, 4) == expected


def test_singles_by_row_and_number_with_their_counts() -> None:
    rows = made(rows_of(SINGLES), tinybert(SINGLES, [[0], [1], [2]]), (FIRST,) * 2)
    assert rows == [
        (0, 1, "tinybert", "A blue cat .", None, 2, 4),
        (0, 2, "tinybert", "A blue cat .", None, 2, 4),
        (1, 1, "tinybert", ' it\u2019s "big"\tand  BLUE ', None, 1, 4),
        (1, 2, "tinybert", ' it\u2019s "big"\tand  BLUE ', None, 1, 4),
        (2, 1, "ngram", "", None, 0, 0),  # equal to its original, and so left out later
        (2, 2, "ngram", "", None, 0, 0),
    ]


def test_a_changed_second_sentence_keeps_the_first() -> None:
    texts = [text for pair in PAIRS for text in pair]
    method = tinybert(texts, [[0, 1], [2, 3], [4, 5]])
    rows = made(PAIR_ROWS, method, TinyBert().sides(True, 1))
    assert [row[3:] for row in rows] == [
        ("blue cat", "red cat", 2, 2),
        ("red dog", "blue cat", 1, 2),
        ("a cat", "one dog is", 1, 2),
        ("a dog", "one cat is", 1, 3),
        ("cat", "", 1, 1),
        ("dog", "", 0, 0),
    ]
    assert [row[:2] for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
    both = made(PAIR_ROWS, method, TinyBert(pairs="both").sides(True, 1))
    assert [row[3:] for row in both] == [
        ("blue cat", "blue cat", 3, 4),
        ("a cat", "one cat is", 2, 5),
        ("cat", "", 1, 1),
    ]


def test_both_sides_of_a_pair_are_drawn_apart() -> None:
    rows = rows_of(["red dog red"], ["red dog red"])
    texts = [row[3:5] for row in made(rows, tinybert(["red dog red"], [[0, 0]], 0.5), (BOTH,) * 60)]
    assert any(first != second for first, second in texts)
    assert any(first == second != "red dog red" for first, second in texts)


def test_masking_goes_round_and_leaves_out_what_it_gives_up() -> None:
    first, second = "dog cat fox bird", "is was will be"
    sides = MaskPos().sides(True, 300)
    found = made(rows_of([first], [second]), MaskPosEditor(0.5, 0, 0, 0), sides)
    for _, variant, origin, one, two, changed, words in found:
        side = sides[variant - 1]
        assert one == first or 0 in side
        assert two == second or 1 in side
        assert (changed, words) == ((one + two).count(MASK), 4 * len(side))
        assert origin == ("mask" if changed else "ngram")
        assert one.split() != [MASK] * 4
        assert two.split() != [MASK] * 4
    missing = 300 - len(found)  # of a sentence one in 16 is given up; of both, about two
    assert 5 < missing < 60
    assert len({row[1] for row in found}) == len(found)


@pytest.mark.parametrize(
    ("mask", "pos", "cut", "origins"),
    [
        (0.3, 0, 0, {"mask", "ngram"}),
        (0, 0.3, 0, {"pos", "ngram"}),
        (0.2, 0.2, 0, {"mask", "pos", "mask-pos", "ngram"}),
        (0.2, 0.2, 0.5, {"mask", "pos", "mask-pos", "ngram"}),
    ],
)
def test_a_variant_is_called_what_was_done_to_it(mask: float, pos: float, cut: float, origins: set[str]) -> None:
    def tag(words: Sequence[str]) -> list[str]:
        return ["NN"] * len(words)

    method = MaskPosEditor(mask, pos, cut, 0, tag, make_pools(["ant bee cow"], tag))
    first, second = "dog cat fox bird", "hen eel yak"
    seen = set()
    for _, _, origin, one, two, _, _ in made(rows_of([first], [second]), method, (BOTH,) * 400):
        words = f"{one} {two}".split()
        kinds = {"mask" if word == MASK else "pos" for word in words if word not in first + second}
        assert origin == ("-".join(sorted(kinds)) or "ngram")
        seen.add(origin)
    assert seen == origins


def test_rows_without_words_have_no_variants_by_masking() -> None:
    assert made(rows_of(["", " \t"]), MaskPosEditor(0.5, 0, 0, 0), (FIRST,) * 3) == []


def test_one_variant_of_a_pair_changes_its_first_sentence() -> None:
    rows = made(PAIR_ROWS, MaskPosEditor(0.3, 0, 0, 0), MaskPos().sides(True, 1))
    assert rows
    assert all(row[4] == PAIRS[row[0]][1] for row in rows)


def test_texts_survive_parquet_to_the_character() -> None:
    table = make_variants(rows_of(SINGLES), tinybert(SINGLES, [[0], [1], [2]]), (FIRST,))
    stream = io.BytesIO()
    pq.write_table(table, stream)
    assert pq.read_table(stream).equals(table)
    assert table.column("sentence1")[1].as_py() == ' it\u2019s "big"\tand  BLUE '
