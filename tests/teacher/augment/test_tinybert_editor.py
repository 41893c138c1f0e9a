"""TinyBERT's replacement with candidates written by hand: which words may be replaced, and the files of candidates."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import BertPreTokenizer

from pipeline.errors import IntegrityError
from pipeline.parquet import parquet_writer
from teacher.augment.editors import (
    SITES_SCHEMA,
    STOP_WORDS,
    Edited,
    Site,
    Sites,
    TinyBertEditor,
    in_case_of,
    read_sites,
    replaceable,
    spliced,
    table_of_sites,
)

TEXT = ' The  Old dog\t"barks" , it \u2019s OLD . '


def sites_of(text: str, candidates: dict[str, list[str]]) -> list[Site]:
    return [Site((text.index(word), text.index(word) + len(word)), some) for word, some in candidates.items()]


def kept(folder: Path, sites: Sequence[Sequence[Site]], cuts: Sequence[int] = ()) -> Sites:
    """Sites written to files, cut at some sentences, and read again."""
    bounds = [0, *cuts, len(sites)]
    paths = [folder / f"{number}.parquet" for number in range(len(bounds) - 1)]
    for path, start, stop in zip(paths, bounds[:-1], bounds[1:], strict=True):
        with parquet_writer(path, SITES_SCHEMA, {}) as writer:
            writer.write_table(table_of_sites(sites[start:stop]))
    return read_sites(paths)


def listed(sites: Sites) -> list[list[Site]]:
    """The sites of each sentence as they were written."""
    found: list[list[Site]] = []
    place = 0
    for starts, stops in ((sites.start[n].tolist(), sites.stop[n].tolist()) for n in range(len(sites.start))):
        choices = [[sites.words[word] for word in sites.choices[place + n]] for n in range(len(starts))]
        found.append([Site(span, some) for span, some in zip(zip(starts, stops, strict=True), choices, strict=True)])
        place += len(starts)
    return found


def edit(
    method: TinyBertEditor, texts: Sequence[str], rows: Sequence[int], variants: Sequence[int]
) -> list[list[Edited]]:
    edited = method.edit(texts, np.array(rows, dtype=np.int64), 0, np.array(variants, dtype=np.int64))
    return [[variant for variant in row if variant is not None] for row in edited]


def single(
    folder: Path, text: str, candidates: dict[str, list[str]], probability: float, seed: int = 3
) -> TinyBertEditor:
    """The method for one row with one sentence."""
    return TinyBertEditor(kept(folder, [sites_of(text, candidates)]), np.array([[0]]), probability, seed)


SENTENCES = ["a dog", "", "the big dog 'sees'", "\u00e9\U0001f600 cat"]
SITES = [
    sites_of("a dog", {"dog": ["cat", "fox"]}),
    [],
    sites_of("the big dog 'sees'", {"big": ['"', "\t", "\u00fc"], "dog": ["fox"], "sees": ["sees", "cat"]}),
    sites_of("\u00e9\U0001f600 cat", {"cat": ["dog"]}),
]


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2, 3], [0, 4]])
def test_sites_survive_their_files_however_many(tmp_path: Path, cuts: list[int]) -> None:
    sites = kept(tmp_path, SITES, cuts)
    assert listed(sites) == SITES
    assert sorted(sites.words) == sorted({word for row in SITES for site in row for word in site.candidates})


def test_no_flipped_bit_gives_other_candidates(tmp_path: Path) -> None:
    kept(tmp_path, SITES)
    path = tmp_path / "0.parquet"
    whole = path.read_bytes()
    messages = []
    for place in range(4, len(whole) - 8 - pq.read_metadata(path).serialized_size, 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert listed(read_sites([path])) == SITES
        except IntegrityError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all(message.startswith(f"{path}: ") for message in messages)


def test_sentences_without_any_site_stay_as_they_are(tmp_path: Path) -> None:
    method = TinyBertEditor(kept(tmp_path, [[], []]), np.array([[0], [1]]), 1.0, 0)
    kept_as_is = [Edited("it is", frozenset(), 0, 2), Edited("", frozenset(), 0, 0)]
    assert edit(method, ["it is", ""], [0, 1], [1, 2]) == [[part] * 2 for part in kept_as_is]


def test_words_are_replaced_in_their_case(tmp_path: Path) -> None:
    method = single(tmp_path, TEXT, {"Old": ["young"], "dog": ["cat"], "barks": ["runs"], "OLD": ["new"]}, 1.0)
    expected = Edited(' The  Young cat\t"runs" , it \u2019s NEW . ', frozenset({"tinybert"}), 4, 9)
    assert edit(method, [TEXT], [0], [1, 2]) == [[expected, expected]]


def test_choosing_the_word_itself_changes_nothing(tmp_path: Path) -> None:
    method = single(tmp_path, TEXT, {"Old": ["old"], "OLD": ["Old"]}, 1.0)
    assert edit(method, [TEXT], [0], [1]) == [[Edited(TEXT, frozenset(), 0, 9)]]
    method = single(tmp_path, "a dog", {"dog": ["cat", "dog"]}, 1.0)
    counts = Counter((part.text, part.changed) for part in edit(method, ["a dog"], [0], range(1, 2001))[0])
    assert counts.keys() == {("a dog", 0), ("a cat", 1)}
    assert abs(counts["a cat", 1] - 1000) < 5 * 22.4  # five standard deviations: sqrt(2000 / 4)


@pytest.mark.parametrize("probability", [0.1, 0.4, 0.9])
def test_words_are_replaced_independently(tmp_path: Path, probability: float) -> None:
    method = single(tmp_path, "red dog", {"red": ["blue"], "dog": ["cat"]}, probability)
    n = 8000
    counts = Counter(part.text for part in edit(method, ["red dog"], [0], range(n))[0])
    shares = {"blue cat": probability**2, "red dog": (1 - probability) ** 2}
    shares |= dict.fromkeys(["red cat", "blue dog"], probability * (1 - probability))
    for text, share in shares.items():
        assert abs(counts[text] - n * share) < 5 * np.sqrt(n * share * (1 - share)), text


def test_the_word_itself_among_candidates_lowers_the_rate(tmp_path: Path) -> None:
    candidates = ["dog", *(f"word{n}" for n in range(14))]
    n = 20_000
    parts = edit(single(tmp_path, "dog", {"dog": candidates}, 0.4), ["dog"], [0], range(n))[0]
    counts = Counter(part.text for part in parts)
    share = 0.4 * 14 / 15  # 0.373
    assert abs(sum(part.changed for part in parts) - n * share) < 5 * np.sqrt(n * share * (1 - share))
    for word in candidates[1:]:
        assert abs(counts[word] - n * 0.4 / 15) < 5 * np.sqrt(n * 0.4 / 15)


NUMBERS = np.array([[0, 2], [2, 0], [0, 3], [1, 2], [0, 0]])  # rows 0 and 2 begin with the same sentence


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return kept(tmp_path_factory.mktemp("sites"), SITES)


@given(
    seed=st.integers(0, 5),
    side=st.integers(0, 1),
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    variants=st.lists(st.integers(1, 2**19), min_size=1, max_size=5),
)
def test_a_variant_depends_on_seed_row_number_and_side_alone(
    sites: Sites, seed: int, side: int, rows: list[int], variants: list[int]
) -> None:
    method = TinyBertEditor(sites, NUMBERS, 0.5, seed)

    def ask(rows: list[int], variants: list[int]) -> list[list[Edited | None]]:
        texts = [SENTENCES[NUMBERS[row, side]] for row in rows]
        return method.edit(texts, np.array(rows), side, np.array(variants))

    assert ask(rows, variants) == [[ask([row], [variant])[0][0] for variant in variants] for row in rows]


def test_seeds_rows_and_sides_have_draws_of_their_own(sites: Sites) -> None:
    variants = np.arange(1, 40)

    def draws(row: int, side: int, seed: int) -> list[Edited | None]:
        (edited,) = TinyBertEditor(sites, NUMBERS, 0.5, seed).edit(["a dog"], np.array([row]), side, variants)
        return edited

    # the same sentence: first of rows 0 and 2, both of row 4
    different = [draws(0, 0, 0), draws(0, 0, 1), draws(2, 0, 0), draws(4, 0, 0), draws(4, 1, 0)]
    assert all(one != other for n, one in enumerate(different) for other in different[:n])
    assert all({part.text for part in row if part} == {"a dog", "a cat", "a fox"} for row in different)


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
