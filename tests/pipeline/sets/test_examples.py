from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import IntegrityError
from pipeline.parquet import read_footer
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet, text_hash
from pipeline.sets.registry import example_columns
from pipeline.sql.read_only_query import open_files, select
from tests.helpers.shards import write_examples

NUM_LOGITS = 3
LOGITS = pa.field("logits", pa.list_(pa.float32(), NUM_LOGITS), nullable=False)
floats = st.floats(width=32, allow_nan=False)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Any rows that the format can hold."""
    vocabulary = draw(st.sampled_from([30522, 2**16, 100_000]))
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=5)
    columns: dict[str, st.SearchStrategy[Any]] = {
        "split": st.just("train"),
        "source_row": st.integers(0, 2**63 - 1),
        "variant": st.integers(0, 2**31 - 1),
        "origin": st.sampled_from(["original", "tinybert"]),
        "sentence1": st.none() | st.text(),
        "sentence2": st.none() | st.text(),
        "ids1": ids,
        "ids2": st.none() | ids,
        "text_hash": st.binary(min_size=16, max_size=16),
        "label": st.none() | st.integers(0, 100),
        "score": st.none() | floats,
        "logits": st.lists(floats, min_size=NUM_LOGITS, max_size=NUM_LOGITS),
    }
    rows = draw(st.lists(st.fixed_dictionaries(columns), max_size=6))
    return pa.Table.from_pylist(rows, pa.schema([*example_columns(vocabulary), LOGITS]))


@settings(max_examples=25)
@given(table=tables())
def test_rows_come_back_as_they_went(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.parquet"
    write_examples(path, table, {})
    assert pq.read_table(path, partitioning=None).equals(table)
    with open_files({"examples": [path]}) as connection:  # and DuckDB reads the same
        assert select(connection, "select * from examples").to_arrow_table().to_pylist() == table.to_pylist()


@pytest.mark.parametrize(("vocabulary", "bits"), [(30522, 16), (2**16, 16), (2**16 + 1, 32)])
def test_ids_are_as_small_as_the_vocabulary_allows(vocabulary: int, bits: int) -> None:
    schema = pa.schema(example_columns(vocabulary))
    assert schema.field("ids1").type.value_type.bit_width == bits
    assert schema.field("ids2").type == schema.field("ids1").type


def test_encodings(opinion_set: ExampleSet) -> None:
    group = pq.read_metadata(opinion_set.root / opinion_set.record.shards[0].path).row_group(0)
    columns = {group.column(k).path_in_schema: group.column(k) for k in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["logits.list.element"].encodings
    assert "BYTE_STREAM_SPLIT" in columns["ids1.list.element"].encodings
    assert "RLE_DICTIONARY" in columns["label"].encodings
    assert columns["source_row"].has_offset_index


texts = st.none() | st.text(max_size=4)


@given(one=st.tuples(st.text(max_size=4), texts), other=st.tuples(st.text(max_size=4), texts))
def test_text_hash_tells_inputs_apart(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    assert (text_hash("t", *one) == text_hash("t", *other)) == (one == other)
    assert text_hash("t", *one) != text_hash("another tokenizer", *one)
    assert len(text_hash("t", *one)) == 16


def test_text_hash_knows_where_the_first_sentence_ends() -> None:
    inputs = [("ab", None), ("a", "b"), ("ab", ""), ("", "ab")]
    assert len({text_hash("t", *row) for row in inputs}) == len(inputs)


def test_footer_says_which_run_and_which_rows(opinion_set: ExampleSet) -> None:
    record = opinion_set.record
    for shard in record.shards:
        footer = read_footer(opinion_set.root / shard.path)
        assert footer == footer_of(record, shard)
        assert footer["fingerprint"] == record.fingerprint
        assert (footer["start"], footer["stop"]) == (shard.start, shard.stop)


def test_files_that_are_not_ours(tmp_path: Path, opinion_set: ExampleSet) -> None:
    shard = (opinion_set.root / opinion_set.record.shards[0].path).read_bytes()
    (tmp_path / "torn").write_bytes(shard[: len(shard) // 2])
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign")
    for name in ("torn", "text", "foreign", "gone"):
        with pytest.raises(IntegrityError, match=name):
            read_footer(tmp_path / name)
