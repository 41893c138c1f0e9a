import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.arrays import Ragged
from pipeline.text.text_to_ids import TextReader
from teacher.corpus.sequences import (
    Document,
    Masked,
    MaskingPlan,
    Sequences,
    frequency_weights,
    mask,
    read_sequences,
    uniform_weights,
)
from teacher.settings import Packing
from teacher.tiny import create_tiny_bert

Found = tuple[int, int, str]  # source row, piece, its words

PACKINGS: tuple[Packing, ...] = ("sentences", "blocks")
words = st.sampled_from(["Apple", "bread", "Candle.", "door.", "Engine!", "?", " ", "\n", "unknown"])
texts = st.lists(st.lists(words, max_size=12).map(" ".join), max_size=8)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Knows five words and the full stop."""
    folder = tmp_path_factory.mktemp("tokenizer")
    create_tiny_bert(folder, ["apple bread candle door engine ."], hidden_size=32, num_layers=1)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def cut(
    tokenizer: Tokenizer,
    batches: Sequence[list[Document]],
    packing: Packing = "sentences",
    min_tokens: int = 1,
    max_tokens: int = 100,
) -> list[Found]:
    """The sequences that come out, in words."""
    found: list[Found] = []
    for part in read_sequences(batches, TextReader.of(tokenizer), packing, "en", min_tokens, max_tokens):
        assert len(part) == len(part.source_row_N) == len(part.piece_N) == len(part.ids) > 0
        ids = [tokenizer.decode(part.ids[k].tolist(), skip_special_tokens=False) for k in range(len(part))]
        found += zip(part.source_row_N.tolist(), part.piece_N.tolist(), ids, strict=True)
    return found


def all_words(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


def test_sentences_are_numbered_within_their_document(tokenizer: Tokenizer) -> None:
    batches = [[(3, "Apple bread. Candle door engine."), (4, ""), (7, "Bread.")], [], [(8, "Door")]]
    assert cut(tokenizer, batches) == [
        (3, 0, "apple bread ."),
        (3, 1, "candle door engine ."),
        (7, 0, "bread ."),
        (8, 0, "door"),
    ]


def test_long_sentences_are_cut_into_pieces(tokenizer: Tokenizer) -> None:
    found = cut(tokenizer, [[(0, "Apple bread candle door engine. Bread apple."), (1, "Candle door.")]], max_tokens=4)
    assert found == [
        (0, 0, "apple bread candle door"),
        (0, 1, "engine ."),
        (0, 2, "bread apple ."),
        (1, 0, "candle door ."),
    ]


def test_short_sequences_are_left_out_numbers_stay(tokenizer: Tokenizer) -> None:
    batches = [[(0, "Apple bread candle door engine. Bread. Door apple."), (1, "Candle.")]]
    assert cut(tokenizer, batches, min_tokens=3, max_tokens=4) == [
        (0, 0, "apple bread candle door"),
        (0, 3, "door apple ."),
    ]
    assert cut(tokenizer, batches, min_tokens=5, max_tokens=5) == [(0, 0, "apple bread candle door engine")]
    assert cut(tokenizer, [[(1, "Candle.")]], min_tokens=3) == []


def test_blocks_run_over_the_ends_of_documents(tokenizer: Tokenizer) -> None:
    batches = [
        [(0, "Apple bread candle"), (1, " "), (2, "Door")],
        [(5, "engine apple bread. candle door engine apple")],
    ]
    assert cut(tokenizer, batches, "blocks", max_tokens=4) == [
        (0, 0, "apple bread candle [SEP]"),
        (2, 0, "door [SEP] engine apple"),
        (5, 0, "bread . candle door"),  # the first that begins in document 5
        (5, 1, "engine apple [SEP]"),
    ]
    assert [row for row, _, _ in cut(tokenizer, batches, "blocks", min_tokens=4, max_tokens=4)] == [0, 2, 5]


def test_no_documents_give_no_sequences(tokenizer: Tokenizer) -> None:
    for packing in PACKINGS:
        assert cut(tokenizer, [], packing) == cut(tokenizer, [[], [(0, ""), (1, " \n")]], packing) == []


@given(texts=texts, max_tokens=st.integers(1, 9))
def test_blocks_hold_every_token_and_all_but_the_last_are_full(
    texts: list[str], max_tokens: int, tokenizer: Tokenizer
) -> None:
    blocks = [text.split() for _, _, text in cut(tokenizer, [list(enumerate(texts))], "blocks", 1, max_tokens)]
    documents = [all_words(tokenizer, text) for text in texts]
    assert [*itertools.chain(*blocks)] == [*itertools.chain(*([*ids, "[SEP]"] for ids in documents if ids))]
    assert all(len(block) == max_tokens for block in blocks[:-1])


@given(texts=texts, max_tokens=st.integers(1, 9))
def test_sentences_hold_every_token_of_their_document(texts: list[str], max_tokens: int, tokenizer: Tokenizer) -> None:
    found = cut(tokenizer, [list(enumerate(texts))], "sentences", 1, max_tokens)
    for row, text in enumerate(texts):
        pieces = [(piece, ids.split()) for source_row, piece, ids in found if source_row == row]
        assert [piece for piece, _ in pieces] == list(range(len(pieces)))
        assert [*itertools.chain(*(ids for _, ids in pieces))] == all_words(tokenizer, text)
    assert all(len(ids.split()) <= max_tokens for _, _, ids in found)


@given(
    texts=texts,
    ends=st.lists(st.integers(0, 8), max_size=5),
    packing=st.sampled_from(PACKINGS),
    min_tokens=st.integers(1, 3),
    max_tokens=st.integers(3, 9),
)
def test_how_documents_are_batched_does_not_matter(
    texts: list[str], ends: list[int], packing: Packing, min_tokens: int, max_tokens: int, tokenizer: Tokenizer
) -> None:
    documents: list[Document] = [(10 * k, text) for k, text in enumerate(texts)]
    batches = [documents[low:high] for low, high in itertools.pairwise([0, *sorted(ends), 8])]
    whole = cut(tokenizer, [documents], packing, min_tokens, max_tokens)
    assert cut(tokenizer, batches, packing, min_tokens, max_tokens) == whole
    assert len({(row, piece) for row, piece, _ in whole}) == len(whole)  # what masking takes as a key


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_tokenizers_truncation_and_padding_are_removed(
    tokenizer: Tokenizer, packing: Packing, tmp_path: Path
) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    other = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    other.enable_truncation(2)
    other.enable_padding(length=6)
    batches = [[(0, "Apple bread candle door"), (1, "Engine")]]
    assert cut(other, batches, packing) == cut(tokenizer, batches, packing)


def test_take_picks_sequences_with_their_keys(tokenizer: Tokenizer) -> None:
    (found,) = read_sequences(
        [[(3, "Apple bread. Candle. Door engine."), (7, "Bread.")]], TextReader.of(tokenizer), "sentences", "en", 1, 9
    )
    taken = found.take(np.array([3, 2]))
    assert taken.source_row_N.tolist() == [7, 3]
    assert taken.piece_N.tolist() == [0, 2]
    assert [tokenizer.decode(taken.ids[k].tolist()) for k in range(2)] == ["bread .", "door engine ."]


SPECIAL, MASK_ID, VOCABULARY = [0, 1, 2, 3, 4], 4, 15
UNIFORM = uniform_weights(VOCABULARY, SPECIAL)
FREQUENCY = frequency_weights(np.arange(VOCABULARY) ** 3, SPECIAL)

Rows = list[list[int]]
Row = tuple[list[int], list[int], list[int]]  # ids, positions, targets

rows_of_ids = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=14), min_size=1, max_size=6)
plans = st.builds(
    MaskingPlan,
    seed=st.integers(0, 2**32),
    probability=st.floats(0.01, 0.99),
    num_copies=st.integers(1, 5),
    mask_id=st.just(MASK_ID),
    weight_V=st.sampled_from([UNIFORM, FREQUENCY]),
)
PLAN = MaskingPlan(seed=42, probability=0.15, num_copies=1, mask_id=MASK_ID, weight_V=UNIFORM)


def sequences(rows: Rows, first_row: int = 0) -> Sequences:
    """Two sequences from each document."""
    numbers = np.arange(len(rows))
    return Sequences(numbers // 2 + first_row, numbers % 2, Ragged.of(rows))


def repeated(row: list[int], count: int) -> Sequences:
    """The same tokens in many documents."""
    return Sequences(np.arange(count), np.zeros(count, dtype=np.int64), Ragged.repeated(row, count))


def contents(masked: Masked) -> list[Row]:
    numbers = range(len(masked.sequence_R))
    return [(masked.ids[k].tolist(), masked.positions[k].tolist(), masked.targets[k].tolist()) for k in numbers]


def by_key(source: Sequences, masked: Masked) -> dict[tuple[int, int, int], Row]:
    """The rows by source row, piece and copy."""
    rows, pieces = source.source_row_N[masked.sequence_R], source.piece_N[masked.sequence_R]
    keys = list(zip(rows.tolist(), pieces.tolist(), masked.copy_R.tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, contents(masked), strict=True))


def maskable(row: list[int]) -> list[int]:
    return [place for place, token in enumerate(row) if token not in SPECIAL]


def sizes(row: list[int], plan: MaskingPlan) -> tuple[int, int]:
    """How many tokens a copy masks, and how many copies mask all."""
    count = len(maskable(row))
    masked = max(1, round(plan.probability * count))
    return masked, -(-count // masked)


@given(rows=rows_of_ids, plan=plans, first_copy=st.integers(0, 9))
def test_ids_positions_and_targets_agree(rows: Rows, plan: MaskingPlan, first_copy: int) -> None:
    masked = mask(sequences(rows), plan, first_copy)
    copies = range(first_copy, first_copy + plan.num_copies)
    expected = [(k, copy) for k, row in enumerate(rows) if maskable(row) for copy in copies]
    assert list(zip(masked.sequence_R.tolist(), masked.copy_R.tolist(), strict=True)) == expected
    for (number, copy), (ids, positions, targets) in zip(expected, contents(masked), strict=True):
        row = rows[number]
        size, num_copies = sizes(row, plan)
        is_last = copy % num_copies == num_copies - 1
        assert len(positions) == (len(maskable(row)) - (num_copies - 1) * size if is_last else size) > 0
        assert positions == sorted(set(positions) & set(maskable(row)))
        assert targets == [row[place] for place in positions]
        assert len(ids) == len(row)
        for place, (before, after) in enumerate(zip(row, ids, strict=True)):
            assert after == MASK_ID or after not in SPECIAL if place in positions else after == before


@given(
    rows=rows_of_ids.filter(lambda rows: any(map(maskable, rows))), plan=plans, turn=st.integers(0, 3), data=st.data()
)
def test_every_token_is_masked_once_in_each_round(
    rows: Rows, plan: MaskingPlan, turn: int, data: st.DataObject
) -> None:
    row = data.draw(st.sampled_from([row for row in rows if maskable(row)]))
    _, num_copies = sizes(row, plan)
    masked = mask(sequences([row]), replace(plan, num_copies=num_copies), turn * num_copies)
    assert sorted(masked.positions.flat.tolist()) == maskable(row)


def test_each_round_cuts_a_sequence_anew() -> None:
    source = repeated(list(range(5, 15)), 30)  # 10 tokens, 2 in each of 5 copies
    masked = mask(source, replace(PLAN, probability=0.2, num_copies=15))
    rows = by_key(source, masked)
    orders = {
        tuple(place for copy in range(5 * turn, 5 * turn + 5) for place in rows[row, 0, copy][1])
        for row in range(30)
        for turn in range(3)
    }
    assert len(orders) > 85  # of 90; there are 113 400


@given(rows=rows_of_ids, plan=plans, data=st.data())
def test_a_masked_row_depends_on_its_key_alone(rows: Rows, plan: MaskingPlan, data: st.DataObject) -> None:
    source = sequences(rows, first_row=data.draw(st.integers(0, 2**40)))
    whole = by_key(source, mask(source, replace(plan, num_copies=8)))
    some = source.take(np.array(data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(1, len(rows)))]))
    first_copy = data.draw(st.integers(0, 8 - plan.num_copies))
    part = by_key(some, mask(some, plan, first_copy))
    assert part == {key: whole[key] for key in part}
    documents = set(zip(some.source_row_N.tolist(), some.piece_N.tolist(), strict=True))
    assert len(part) == plan.num_copies * len({key[:2] for key in whole} & documents)


def families(row: list[int], plan: MaskingPlan, count: int) -> list[list[Row]]:
    """The same tokens masked with many documents, pieces, seeds or copies in the key."""
    zeros, numbers = np.zeros(count, dtype=np.int64), np.arange(count)
    ids = Ragged.repeated(row, count)
    one = repeated(row, 1)
    return [
        contents(mask(Sequences(numbers, zeros, ids), plan)),
        contents(mask(Sequences(zeros, numbers, ids), plan)),
        [contents(mask(one, replace(plan, seed=seed)))[0] for seed in range(count)],
        contents(mask(one, replace(plan, num_copies=count))),
    ]


def test_choice_depends_on_document_piece_seed_and_copy() -> None:
    for family in families(list(range(5, 15)) * 4, PLAN, 50):  # 6 of 40 tokens: 3.8 million choices
        assert len({tuple(positions) for _, positions, _ in family}) == 50


def test_replacements_depend_on_their_place_and_seed() -> None:
    row = list(range(5, 15))
    for family in families(row, replace(PLAN, probability=0.99), 1000):
        assert all(positions == list(range(10)) for _, positions, _ in family)  # no choice here
        assert len({tuple(ids) for ids, _, _ in family}) > 300
        for seen in zip(*(ids for ids, _, _ in family), strict=True):
            assert set(seen) == {MASK_ID, *row}


def test_replacements_are_80_10_10() -> None:
    masked = mask(repeated([5] * 20, 8000), PLAN)
    read = masked.ids.flat[np.repeat(masked.ids.offsets[:-1], 3) + masked.positions.flat]
    assert len(read) == 24_000  # 15 % of 20 tokens each
    share = np.bincount(read, minlength=VOCABULARY) / len(read)
    expected = np.zeros(VOCABULARY)
    expected[5:] = 0.1 / 10  # a random token is any of the ten ordinary ones
    expected[5] += 0.1
    expected[MASK_ID] = 0.8
    assert np.all(np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / len(read)))


def test_replacements_do_not_depend_on_the_choice() -> None:
    # what is read instead is as likely at every place
    masked = mask(repeated(list(range(5, 15)), 8000), replace(PLAN, probability=0.1))
    is_mask = masked.ids.flat.reshape(-1, 10)[np.arange(8000), masked.positions.flat] == MASK_ID
    for place in range(10):
        here = is_mask[masked.positions.flat == place]
        assert abs(len(here) - 800) < 5 * np.sqrt(8000 * 0.1 * 0.9)
        assert abs(here.mean() - 0.8) < 5 * np.sqrt(0.16 / len(here))


def test_weights() -> None:
    assert uniform_weights(6, [0, 2]).tolist() == [0, 1, 0, 1, 1, 1]
    counts = np.array([9, 0, 1, 32, 1024])
    np.testing.assert_allclose(frequency_weights(counts, [0]), [0, 1, 1, 2**-3.5, 2**-7], rtol=1e-15)


@pytest.mark.parametrize("counts", [(1, 32), (0, 1), (1000, 10), (1, 10**12)])
def test_the_rarer_of_two_tokens_is_masked_by_the_known_ratio(counts: tuple[int, int]) -> None:
    count_V = np.full(VOCABULARY, 77)
    count_V[[5, 6]] = counts
    masked = mask(repeated([6, 5], 10_000), replace(PLAN, weight_V=frequency_weights(count_V, SPECIAL)))
    first, second = (max(count, 1) ** -0.7 for count in counts)
    chance = first / (first + second)
    assert abs(np.mean(masked.targets.flat == 5) - chance) <= 5 * np.sqrt(chance * (1 - chance) / 10_000)


def test_copies_draw_by_weight_without_putting_back() -> None:
    weight_V = np.zeros(VOCABULARY)
    weight_V[5:8] = 1, 2, 5
    masked = mask(repeated([5, 6, 7], 10_000), replace(PLAN, num_copies=3, weight_V=weight_V))
    draws = masked.targets.flat.reshape(-1, 3)
    for order in itertools.permutations([5, 6, 7]):
        one, two, three = weight_V[list(order)]
        chance = one / 8 * two / (two + three)
        share = np.mean(np.all(draws == order, axis=1))
        assert abs(share - chance) < 5 * np.sqrt(chance * (1 - chance) / 10_000)


def test_tokens_of_no_weight_are_never_put_in() -> None:
    weight_V: npt.NDArray[np.float64] = np.zeros(VOCABULARY)
    weight_V[[5, 9]] = 1
    masked = mask(repeated([5, 6, 0, 9, 7], 3000), replace(PLAN, num_copies=2, weight_V=weight_V))
    assert set(masked.targets.flat.tolist()) == {5, 9}
    assert set(masked.ids.flat.reshape(-1, 5)[:, [0, 3]].ravel().tolist()) == {5, 9, MASK_ID}


@pytest.mark.parametrize("rows", [[], [[]], [[0, 1, 4], [], [3]]])
def test_nothing_to_mask(rows: Rows) -> None:
    masked = mask(sequences(rows), replace(PLAN, num_copies=3))
    assert len(masked.sequence_R) == len(masked.copy_R) == 0
    assert len(masked.ids) == len(masked.positions) == len(masked.targets) == 0


def test_sequences_are_left_as_they_are() -> None:
    source = repeated([5, 6, 7], 40)
    mask(source, replace(PLAN, num_copies=4))
    assert source.ids.flat.tolist() == [5, 6, 7] * 40


def numbered(masked: Masked) -> Sequence[tuple[int, int, Row]]:
    return list(zip(masked.sequence_R.tolist(), masked.copy_R.tolist(), contents(masked), strict=True))


def test_take_and_joined() -> None:
    masked = mask(sequences([[5, 6, 7], [0], [8, 9], [10, 11, 12, 13]]), replace(PLAN, num_copies=2))
    everything = numbered(masked)
    assert [(number, copy) for number, copy, _ in everything] == [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    rows = [4, 0, 0, 3]
    assert numbered(masked.take(np.array(rows))) == [everything[k] for k in rows]
    parts = [masked.take(np.arange(low, high)) for low, high in ((0, 1), (1, 1), (1, 6))]
    assert numbered(Masked.joined(parts)) == everything
