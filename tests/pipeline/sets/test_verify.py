import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.verify import verify_shards
from tests.helpers.damage import damage as flipped
from tests.helpers.messages import naming
from tests.helpers.rewritten_shards import recorded, rewrite, with_column, with_logit
from tests.helpers.shards import write_examples


def split_value(table: pa.Table) -> pa.Table:
    return with_column(table, "split", pa.array(["train"] * (table.num_rows - 1) + ["validation"]))


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(4, 1)])


def replaced(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(1), table.slice(1, 1)])


def extra_variant_twice(table: pa.Table) -> pa.Table:
    extra = with_column(table.slice(0, 1), "variant", pa.array([1], pa.int32()))
    return pa.concat_tables([table, extra, extra])


def other_type(table: pa.Table) -> pa.Table:
    place = table.column_names.index("source_row")
    return table.set_column(
        place, pa.field("source_row", pa.int32(), False), table.column("source_row").cast(pa.int32())
    )


def test_sound_sets(opinion_set: ExampleSet, roles_set: ExampleSet) -> None:
    for logit_set in (opinion_set, roles_set):
        verify_shards(logit_set.root, logit_set.record)
        assert logit_set.record.state == "verified"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.slice(1), "source rows 24 to 48"),
        (doubled, "source row "),
        (replaced, "source row 25"),
        (extra_variant_twice, "source row 24"),
        (lambda t: with_logit(t, np.nan), "logits of source row 29"),
        (lambda t: with_logit(t, np.inf), "logits of source row 29"),
        (split_value, "'train'"),
        (lambda t: t.drop_columns(["label"]), ": label"),
        (other_type, ": source_row"),
    ],
)
def test_wrong_rows_are_found(own_set: ExampleSet, change: Callable[[pa.Table], pa.Table], message: str) -> None:
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet", message)):
        verify_shards(own_set.root, rewrite(own_set, change))


def test_wrong_row_count_is_found(own_set: ExampleSet) -> None:
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet", "24 rows", "23")):
        verify_shards(own_set.root, recorded(own_set, 3, rows=23))


def test_wrong_footer_is_found(own_set: ExampleSet) -> None:
    shard = own_set.record.shards[3]
    table = pq.read_table(own_set.root / shard.path, partitioning=None)
    other = footer_of(own_set.record, shard) | {"fingerprint": "0" * 64}
    write_examples(own_set.root / shard.path, table, other)
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet", "footer")):
        verify_shards(own_set.root, recorded(own_set, 3))


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def linked_folder(path: Path) -> None:
    path.parent.rename(path.parent.parent / "elsewhere")
    path.parent.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "missing"),
        (linked, "missing"),
        (linked_folder, "missing"),
        (flipped, "SHA-256"),
        (lambda path: os.truncate(path, 100), "100 bytes"),
    ],
)
def test_damaged_file_is_found(own_set: ExampleSet, damage: Callable[[Path], None], message: str) -> None:
    damage(own_set.root / own_set.record.shards[3].path)
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet", message)):
        verify_shards(own_set.root, own_set.record)


def test_unreadable_pages_are_found_although_the_hash_is_right(own_set: ExampleSet) -> None:
    path = own_set.root / own_set.record.shards[3].path
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 1000 + data[1004:])  # the footer is whole
    with pytest.raises(IntegrityError, match=r"train-00001-of-00004\.parquet"):
        verify_shards(own_set.root, recorded(own_set, 3))


def without(record: SetRecord, keep: Callable[[Shard], bool]) -> SetRecord:
    return record.model_copy(update={"shards": tuple(shard for shard in record.shards if keep(shard))})


@pytest.mark.parametrize("keep", [lambda s: s.stop != 96, lambda s: s.start != 24, lambda s: s.split != "train"])
def test_shards_must_cover_their_split(own_set: ExampleSet, keep: Callable[[Shard], bool]) -> None:
    with pytest.raises(IntegrityError, match=naming("'train'", "0 to 96")):
        verify_shards(own_set.root, without(own_set.record, keep))


def test_shards_of_a_split_that_is_not_listed_are_found(own_set: ExampleSet) -> None:
    splits = {"train": own_set.record.splits["train"]}
    with pytest.raises(IntegrityError, match="'validation'"):
        verify_shards(own_set.root, own_set.record.model_copy(update={"splits": splits}))


def test_everything_wrong_is_listed(own_set: ExampleSet) -> None:
    Path.unlink(own_set.root / own_set.record.shards[0].path)
    flipped(own_set.root / own_set.record.shards[4].path)
    with pytest.raises(
        IntegrityError,
        match=naming(
            "2 problems",
            "examples/validation-00000-of-00002.parquet: ",
            "examples/train-00002-of-00004.parquet: ",
            "SHA-256",
        ),
    ):
        verify_shards(own_set.root, own_set.record)
