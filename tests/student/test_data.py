import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.arrays import Ragged, ragged
from pipeline.errors import DataError, QueryError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL
from student.data import gold_tensor, in_batches, load_examples
from student.model.architecture import sequences
from tests.helpers.messages import naming
from tests.helpers.toy_students import student_config

PAD = 99
ROWS = [[1, 2, 3], [], [4], [5, 6]]


def stored(logit_set: ExampleSet, split: str) -> list[dict[str, object]]:
    """The rows of a split, read from its files one by one and sorted by source row."""
    files = sorted((logit_set.root / "examples").glob(f"{split}-*.parquet"))
    assert len(files) > 1
    rows = [row for file in reversed(files) for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: int(row["source_row"]))


def lists(part: Ragged) -> list[list[int]]:
    return [part.flat[a:b].tolist() for a, b in zip(part.offsets, part.offsets[1:], strict=False)]


def test_padded_fills_up_at_the_end() -> None:
    assert Ragged.of(ROWS).padded([2, 0], PAD).tolist() == [[4, PAD, PAD], [1, 2, 3]]
    assert Ragged.of(ROWS).padded([3], PAD).tolist() == [[5, 6]]


def test_empty_sentences_are_one_padding_wide() -> None:
    assert Ragged.of(ROWS).padded([1], PAD).tolist() == [[PAD]]
    assert Ragged.of([[], []]).padded([0, 1], PAD).tolist() == [[PAD], [PAD]]


def test_padding_that_a_text_spells_is_no_token() -> None:
    config = student_config(pad_id=0, is_pair=True)
    ids1, ids2 = sequences(config, Ragged.of([[0, 1, 0, 2], [], [0]]), Ragged.of([[3], [0, 0], [4, 0]]))
    assert (lists(ids1), lists(ids2)) == ([[1, 2], [], []], [[3], [], [4]])


@given(rows=st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=8), data=st.data())
def test_padded_keeps_every_token(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    ids_BL = Ragged.of(rows).padded(chosen, PAD)
    assert ids_BL.dtype == np.int64
    assert [[i for i in row if i != PAD] for row in ids_BL.tolist()] == [rows[k] for k in chosen]
    assert ids_BL.shape == (len(chosen), max(1, *(len(rows[k]) for k in chosen), 0))


def test_ragged_reads_list_columns_with_nulls_and_several_chunks() -> None:
    column = pa.chunked_array([[[1, 2], None], [[], [3]], []], pa.list_(pa.uint16()))
    assert lists(ragged(column)) == [[1, 2], [], [], [3]]
    assert ragged(column).lengths.tolist() == [2, 0, 0, 1]


def test_ragged_reads_a_slice() -> None:
    column = pa.chunked_array([pa.array([[1], [2, 3], [4]], pa.list_(pa.uint16())).slice(1, 2)])
    assert lists(ragged(column)) == [[2, 3], [4]]


@pytest.mark.parametrize("where", [None, "source_row % 3 = 1"])
def test_examples_are_aligned_by_key(opinion_set: ExampleSet, where: str | None) -> None:
    rows = [row for row in stored(opinion_set, "train") if where is None or int(str(row["source_row"])) % 3 == 1]
    examples = load_examples(opinion_set, "train", where)
    assert len(examples) == len(rows) > 30
    assert lists(examples.ids1) == [row["ids1"] for row in rows]
    assert examples.label_N.tolist() == [row["label"] for row in rows]
    assert examples.teacher_NC.tolist() == [row["logits"] for row in rows]
    assert np.isnan(examples.score_N).all()
    assert len({str(row["logits"]) for row in rows}) > 20


def test_single_sentences_have_no_second_one(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    assert examples.ids2 is None
    ids_T, starts_S = examples.batch([1, 0])
    assert ids_T.tolist() == [*examples.ids1[1], *examples.ids1[0]]
    assert starts_S.tolist() == [0, len(examples.ids1[1]), len(ids_T)]


def test_pairs_hold_both_sentences_in_the_tokenizers_ids(roles_set: ExampleSet) -> None:
    examples = load_examples(roles_set, "validation")
    tokenizer = Tokenizer.from_str(roles_set.tokenizer_json())
    ids_T, starts_S = examples.batch(range(5))
    sequences = [part.tolist() for part in ids_T.tensor_split(starts_S[1:-1])]
    for row, one, other in zip(stored(roles_set, "validation"), sequences[:5], sequences[5:], strict=False):
        for text, ids in ((row["sentence1"], one), (row["sentence2"], other)):
            assert ids == tokenizer.encode(str(text), add_special_tokens=False).ids
    assert examples.ids2 is not None
    assert (examples.lengths == np.maximum(examples.ids1.lengths, examples.ids2.lengths)).all()


def test_where_selects_by_macros_on_the_logits(opinion_set: ExampleSet) -> None:
    doubtful = load_examples(opinion_set, "train", "margin(logits) < 0.02 and label = 1")
    p_N = 1 / (1 + np.exp(-np.abs(doubtful.teacher_NC[:, 0] - doubtful.teacher_NC[:, 1]).astype(np.float64)))
    assert 0 < len(doubtful) < len(load_examples(opinion_set, "train"))
    assert (2 * p_N - 1 < 0.02).all()
    assert set(doubtful.label_N) == {1}


def test_hash_of_keys_tells_which_rows_were_chosen(opinion_set: ExampleSet) -> None:
    hashes = [
        load_examples(opinion_set, "train", where).keys_sha256
        for where in ("source_row < 9", "source_row <= 8", "source_row < 8", "source_row between 1 and 9")
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_an_empty_selection_says_which_condition_was_too_narrow(opinion_set: ExampleSet) -> None:
    with pytest.raises(DataError, match=naming("store/opinion: ", "'train'", "--where 'label = 7'")):
        load_examples(opinion_set, "train", "label = 7")


def test_a_wrong_condition_names_what_is_wrong(opinion_set: ExampleSet) -> None:
    with pytest.raises(QueryError, match="labell"):
        load_examples(opinion_set, "train", "labell = 1")


def test_gold_is_what_the_target_asks_for(opinion_set: ExampleSet, ratings: dict[str, ExampleSet]) -> None:
    examples = load_examples(opinion_set, "train")
    assert gold_tensor(opinion_set.record.target, examples).tolist() == examples.label_N.tolist()
    scores = load_examples(ratings["score"], "train")
    assert gold_tensor(ratings["score"].record.target, scores).tolist() == scores.score_N.tolist()
    assert set(scores.label_N) == {NO_LABEL}
    bins = gold_tensor(ratings["bins"].record.target, load_examples(ratings["bins"], "train"))
    assert bins.tolist() == [int(score) - 1 for score in scores.score_N]


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=600), is_sorted=st.booleans())
def test_outputs_in_batches_have_the_order_of_their_inputs(lengths: list[int], is_sorted: bool) -> None:
    ids = Ragged(np.arange(sum(lengths)), np.concatenate([[0], np.cumsum(lengths)]))

    def of_inputs(ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
        return torch.stack([starts_S.diff(), starts_S.diff() + 1], dim=1)

    cpu = torch.device("cpu")
    numbers_NC = in_batches(of_inputs, [ids], 2, cpu, is_sorted=is_sorted)
    assert numbers_NC.tolist() == [[length, length + 1] for length in lengths]
    of_tokens_TC = in_batches(lambda ids_T, _: ids_T[:, None], [ids], 1, cpu, of_tokens=True, is_sorted=is_sorted)
    assert of_tokens_TC[:, 0].tolist() == ids.flat.tolist()
