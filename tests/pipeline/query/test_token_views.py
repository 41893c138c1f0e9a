"""Sets of tokens in SQL: the numbers that were stored, and in words."""

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DataError, QueryError
from pipeline.query.catalog import build_catalog, open_catalog
from pipeline.record_file import read_record
from pipeline.sets.codec_text import CodecName
from pipeline.sets.kinds.masked_words import MaskedWordSet
from pipeline.sets.record import FILE_NAME, write_set_record
from pipeline.sets.signals import Mlm, Signals
from pipeline.sql.database import add_macros, words_view_name
from pipeline.sql.read_only_query import select
from tests.helpers.messages import naming
from tests.helpers.token_sets import CODECS_BY_NAME, WORDS, write_set

NAMES: tuple[CodecName, ...] = ("dense", "topk", "sampled", "hidden")
KEY = "split, source_row, piece, copy, position"


def ask(store: Path, query: str) -> list[tuple[Any, ...]]:
    with open_catalog(store) as connection:
        return select(connection, query).fetchall()


def stored(token_set: MaskedWordSet) -> pa.Table:
    shards = [shard for split in token_set.record.splits for shard in token_set.shards(split)]
    return pa.concat_tables([table for shard in shards for table in token_set.read_shard(shard)])


def half(bits: list[int]) -> list[float]:
    values: list[float] = np.array(bits, dtype=np.uint16).view(np.float16).astype(np.float64).tolist()
    return values


def said(row: dict[str, Any], place: int) -> dict[int | None, float | None]:
    """The probability of each candidate at a masked position of a row, from the stored columns."""
    if "hidden" in row:
        return {None: None}
    if "counts" in row:
        return dict(zip(row["candidates"][place], [count / 8 for count in row["counts"][place]], strict=True))
    log_probs = half(row["log_probs"][place])
    candidates = row["candidates"][place] if "candidates" in row else range(4)
    return dict(zip(candidates, np.exp(log_probs).tolist(), strict=True))


def in_words(token_set: MaskedWordSet) -> dict[tuple[Any, ...], Any]:
    """What the view in words must hold: probability by key, position, target and candidate."""
    return {
        (
            *(row["split"], row["source_row"], row["piece"], row["copy"], position),
            *(WORDS[target], None if candidate is None else WORDS[candidate]),
        ): probability
        for row in stored(token_set).to_pylist()
        for place, (position, target) in enumerate(zip(row["positions"], row["targets"], strict=True))
        for candidate, probability in said(row, place).items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_views_say_what_was_stored(name: CodecName, tmp_path: Path) -> None:
    token_set = write_set(tmp_path / "colours", CODECS_BY_NAME[name])
    with open_catalog(tmp_path) as connection:
        raw = select(connection, "select * from colours order by split, source_row, piece, copy").to_arrow_table()
    assert raw.to_pylist() == stored(token_set).to_pylist()
    rows = ask(tmp_path, f"select {KEY}, target, candidate, probability from colours_words")
    expected = in_words(token_set)
    assert len(rows) == len(expected)
    assert {row[:-1]: row[-1] for row in rows} == (expected if name == "hidden" else pytest.approx(expected, rel=1e-12))


def test_words_of_a_dense_set_sum_to_one(tmp_path: Path) -> None:
    write_set(tmp_path / "colours", CODECS_BY_NAME["dense"])
    sums = ask(tmp_path, f"select sum(probability), count(*) from colours_words group by {KEY}")
    assert [count for _, count in sums] == [4] * 9
    assert [total for total, _ in sums] == pytest.approx([1] * 9, abs=2e-3)


def test_bits_are_the_float16_of_numpy() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    finite = bits[np.isfinite(bits.view(np.float16))]
    assert len(finite) == 2**16 - 2 * 2**10
    table = pa.table({"bits": finite})
    with duckdb.connect() as connection:
        add_macros(connection)
        connection.register("t", table)
        answer = connection.execute("select bits, half(bits) as value from t").fetchnumpy()
    np.testing.assert_array_equal(answer["value"], np.asarray(answer["bits"]).view(np.float16).astype(np.float64))
    assert len(answer["bits"]) == len(finite)


def test_the_tables_describe_sets_of_tokens(tmp_path: Path) -> None:
    for name in NAMES:
        write_set(tmp_path / name, CODECS_BY_NAME[name])
    rows = ask(tmp_path, 'select "set", codec, corpus, task, labels, "rows" from sets order by 1')
    names = {name: str(CODECS_BY_NAME[name]) for name in sorted(NAMES)}
    assert rows == [(name, codec, "colours", None, None, 7) for name, codec in names.items()]


def test_a_vocabulary_is_listed_once(tmp_path: Path) -> None:
    one = write_set(tmp_path / "one", CODECS_BY_NAME["topk"])
    write_set(tmp_path / "two", CODECS_BY_NAME["sampled"])
    key = one.record.tokenizer.sha256
    assert ask(tmp_path, "select * from vocabulary order by id") == [(key, i, word) for i, word in enumerate(WORDS)]


def test_each_set_speaks_its_own_tokenizers_words(tmp_path: Path) -> None:
    write_set(tmp_path / "english", CODECS_BY_NAME["topk"])
    german = {word: i for i, word in enumerate(("rot", "grün", "it's blau", "[MASK]"))}
    write_set(tmp_path / "german", CODECS_BY_NAME["topk"], german)
    assert ask(tmp_path, "select count(distinct tokenizer), count(*) from vocabulary") == [(2, 8)]
    query = f"""
        select e.target, any_value(g.target), count(distinct g.target) from english_words e
        join german_words g using ({KEY}) group by 1 order by 1
    """
    assert ask(tmp_path, query) == [("blue", "it's blau", 1), ("green", "grün", 1), ("red", "rot", 1)]


def test_a_candidate_without_a_word_is_not_left_out(tmp_path: Path) -> None:
    words = {"red": 0, "green": 1, "blue": 2, "far": 9}  # 3 is nothing
    token_set = write_set(tmp_path / "colours", CODECS_BY_NAME["dense"], words)
    rows = ask(tmp_path, "select candidate, count(*) from colours_words group by 1 order by 1")
    assert rows == [("blue", 9), ("green", 9), ("red", 9), (None, 9)]
    assert token_set.record.tokenizer.vocabulary_size == 10


def test_a_staged_set_has_no_views(tmp_path: Path) -> None:
    token_set = write_set(tmp_path / "colours", CODECS_BY_NAME["topk"])
    write_set_record(tmp_path / "colours", token_set.record.model_copy(update={"state": "staged"}))
    assert ask(tmp_path, "select state from sets") == [("staged",)]
    for view in ("colours", "colours_words"):
        with pytest.raises(QueryError, match=naming(view)):
            ask(tmp_path, f"select * from {view}")


@pytest.mark.parametrize(
    ("folders", "view"), [(("a", "a_words"), "a_words"), (("a-words", "A"), "a_words"), (("b.c", "b-c"), "b_c")]
)
def test_names_that_become_one_view_are_refused(tmp_path: Path, folders: tuple[str, str], view: str) -> None:
    for folder in folders:
        write_set(tmp_path / folder, CODECS_BY_NAME["topk"])
    with pytest.raises(DataError, match=naming(repr(view))):
        build_catalog(tmp_path)


def test_a_set_named_like_a_table_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "Vocabulary", CODECS_BY_NAME["topk"])
    assert words_view_name("Vocabulary") == "vocabulary_words"
    with pytest.raises(DataError, match=naming("Vocabulary: ", "'vocabulary'")):
        build_catalog(tmp_path)


@pytest.mark.parametrize("damage", ["tokenizer", "codec", "version", "shard"])
def test_a_damaged_set_is_left_out_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    write_set(tmp_path / "sound", CODECS_BY_NAME["topk"])
    torn = write_set(tmp_path / "torn", CODECS_BY_NAME["topk"], {"red": 0, "green": 1, "blue": 2, "black": 3})
    if damage == "tokenizer":
        (torn.root / "tokenizer.json").write_text("{}")
    elif damage == "codec":
        write_set_record(
            torn.root, torn.record.model_copy(update={"signals": Signals(mlm=Mlm(codec=CODECS_BY_NAME["sampled"]))})
        )
    elif damage == "version":
        values = read_record(torn.root / FILE_NAME)
        (torn.root / FILE_NAME).write_text(json.dumps(values | {"format_version": 2}))
    else:
        (torn.root / torn.record.shards[0].path).write_bytes(b"torn")
    assert ask(tmp_path, "select count(*) from sound") == [(7,)]
    assert "warning: " in capsys.readouterr().err


def test_odd_folder_names(tmp_path: Path) -> None:
    store = tmp_path / "it's [1]"
    write_set(store / "colours-2", CODECS_BY_NAME["sampled"])
    assert ask(store, "select count(distinct target) from colours_2_words") == [(3,)]
