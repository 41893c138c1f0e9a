import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError, IntegrityError, QueryError
from pipeline.sets.kinds.examples import ExampleSet, keys_sha256
from pipeline.sets.open import find_set
from pipeline.sets.record import write_set_record
from pipeline.sets.signals.rows import logits_of
from pipeline.tasks.target import softmax
from tests.helpers.messages import naming


def rows_where(logit_set: ExampleSet, where: str | None) -> list[int]:
    rows: list[int] = logit_set.read("train", ("source_row",), where).column("source_row").to_pylist()
    return rows


def test_rows_come_in_the_order_of_their_keys(opinion_set: ExampleSet) -> None:
    assert rows_where(opinion_set, None) == list(range(96))
    rows = opinion_set.read("validation", ("source_row", "split", "origin"))
    assert rows.column("source_row").to_pylist() == list(range(40))
    assert set(rows.column("split").to_pylist()) == {"validation"}


def test_a_set_is_opened_by_its_name_as_text(opinion_set: ExampleSet) -> None:
    assert ExampleSet.open(str(opinion_set.root)) == opinion_set
    with pytest.raises(IntegrityError, match=naming("nowhere", "distill.json")):
        ExampleSet.open("nowhere")


def test_condition_with_macros(opinion_set: ExampleSet) -> None:
    rows = opinion_set.read("train", ("label", "logits"))
    logits = logits_of(rows, 2)
    p = softmax(logits)
    margin = np.abs(p[:, 0] - p[:, 1])
    label = rows.column("label").to_numpy()
    middle = float((np.sort(margin)[47] + np.sort(margin)[48]) / 2)
    expected = np.flatnonzero((margin < middle) & (label == 1)).tolist()
    assert 0 < len(expected) < 48
    assert rows_where(opinion_set, f"margin(logits) < {middle} and label = 1 -- the unsure ones") == expected
    right = np.flatnonzero(logits.argmax(axis=1) == label).tolist()
    assert rows_where(opinion_set, "argmax(logits) = label") == right
    assert rows_where(opinion_set, "ArgMax(logits) = label") == right
    assert rows_where(opinion_set, "label = 0 or label = 1") == list(range(96))


def test_columns_may_be_expressions(opinion_set: ExampleSet) -> None:
    rows = opinion_set.read("train", ("source_row", "entropy(logits) as h"))
    p = softmax(logits_of(opinion_set.read("train", ("logits",)), 2)).astype(np.float64)
    assert rows.column("h").to_numpy() == pytest.approx(-(p * np.log(p)).sum(axis=1), abs=1e-5)


@pytest.mark.parametrize(
    "where",
    [
        "1=1); copy (select 1) to '{shard}' (use_tmp_file false); select (1=1",
        "1=1; drop view examples",
        "1=1); select 1 --",
        "exists (with t as (copy (select 1) to '{shard}' (use_tmp_file false)) select 1)",
        "sentence1 in (select content from read_text('/etc/passwd'))",
        "sentence1 in (select sentence1 from read_parquet('{other}'))",
        "1=1) or (1=1",
        "1=1) union all (select 1",
        "1=1 limit 1",
        "nonsense = 1",
        "labl = 1",
        "cast(sentence1 as int) = 1",
        "error('stop') is null",
        "-- nothing",
    ],
)
def test_condition_that_is_more_than_a_condition_is_refused(own_set: ExampleSet, where: str) -> None:
    before = {path: path.read_bytes() for path in own_set.root.rglob("*.parquet")}
    shard = own_set.root / own_set.record.shards_of("train")[0].path
    other = own_set.root / own_set.record.shards_of("validation")[0].path
    with pytest.raises(QueryError):
        rows_where(own_set, where.replace("{shard}", str(shard)).replace("{other}", str(other)))
    assert {path: path.read_bytes() for path in own_set.root.rglob("*.parquet")} == before


def test_split_that_is_not_there(opinion_set: ExampleSet) -> None:
    with pytest.raises(ConfigError, match=naming("'tran'", "'train'", "train, validation")):
        opinion_set.read("tran", ("source_row",))


def test_changed_file_is_not_read(own_set: ExampleSet) -> None:
    path = own_set.root / own_set.record.shards_of("train")[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=naming(path.name, "SHA-256")):
        own_set.read("train", ("source_row",))
    assert own_set.read("validation", ("source_row",)).num_rows == 40


def test_folder_names_that_mean_something_to_sql_or_globs(own_set: ExampleSet, tmp_path: Path) -> None:
    odd = tmp_path / "it's [1] * ?"
    own_set.root.rename(odd)
    assert ExampleSet.open(odd).read("train", ("source_row",)).num_rows == 96


def test_staged_set_is_not_opened(own_set: ExampleSet) -> None:
    write_set_record(own_set.root, own_set.record.model_copy(update={"state": "staged"}))
    with pytest.raises(IntegrityError, match=naming("distill teacher-dump --manifest opinion.yaml")):
        ExampleSet.open(own_set.root, allow_unverified=True)


def test_sets_are_found_by_name_or_path(
    store: Path, tmp_path: Path, opinion_set: ExampleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_set("opinion", store) == find_set(str(opinion_set.root), tmp_path) == opinion_set.root
    with pytest.raises(DataError, match=naming("'opinon'", "'opinion'", "opinion, roles")):
        find_set("opinon", store)
    with pytest.raises(DataError, match=naming("'opinion'", "--store", "DISTILL_STORE")) as caught:
        find_set("opinion", tmp_path)
    assert "--set" not in str(caught.value)  # which verify, card, push and others do not have
    monkeypatch.setenv("DISTILL_STORE", str(store))
    assert find_set("roles") == store / "roles"


def test_hash_of_keys_says_which_rows_were_chosen(opinion_set: ExampleSet) -> None:
    keys = ("split", "source_row", "variant")
    everything = keys_sha256(opinion_set.read("train", keys))
    assert keys_sha256(opinion_set.read("train", (*keys, "logits"), "true")) == everything
    assert keys_sha256(opinion_set.read("train", keys, "source_row < 95")) != everything
    assert keys_sha256(opinion_set.read("train", keys, "source_row < 40")) != keys_sha256(
        opinion_set.read("validation", keys)
    )


def keys_table(rows: int, chunk: int) -> pa.Table:
    starts = range(0, rows, chunk)
    return pa.concat_tables(
        pa.table({"source_row": np.arange(k, k + chunk), "variant": np.zeros(chunk, int), "split": ["train"] * chunk})
        for k in starts
    )


def test_the_hash_of_keys_ignores_chunks() -> None:
    by_hand = hashlib.sha256("".join(f"('train', {row}, 0)" for row in range(9000)).encode()).hexdigest()
    assert keys_sha256(keys_table(9000, 9000)) == keys_sha256(keys_table(9000, 3)) == by_hand
    assert keys_sha256(keys_table(9000, 9000).slice(1)) != by_hand


def test_the_hash_of_keys_needs_no_memory_for_all_rows() -> None:
    table = keys_table(200_000, 200_000)
    tracemalloc.start()
    keys_sha256(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 * 8  # one list of them
