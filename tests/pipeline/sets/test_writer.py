from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.record_parts import Setting, fingerprint
from pipeline.sets.write import complete_set, finish_set, plan_shards, start_set, unfinished_shards, write_shard
from tests.helpers.messages import naming


def staged(record: SetRecord, **settings: Setting) -> SetRecord:
    """What the record was before the first shard, perhaps with other settings."""
    shards = tuple(shard.unmeasured() for shard in record.shards)
    new = record.settings | settings
    update = {"state": "staged", "shards": shards, "scores": {}, "settings": new, "fingerprint": fingerprint(new)}
    return record.model_copy(update=update)


@given(rows=st.integers(1, 500), per_shard=st.integers(1, 600))
def test_planned_shards_cover_every_row_once(rows: int, per_shard: int) -> None:
    shards = plan_shards("train", rows, per_shard)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert {shard.count for shard in shards} == {len(shards)}
    assert (shards[0].start, shards[-1].stop) == (0, rows)
    assert all(a.stop == b.start for a, b in pairwise(shards))
    sizes = [shard.stop - shard.start for shard in shards]
    assert 1 <= max(sizes) <= per_shard
    assert max(sizes) - min(sizes) <= 1
    assert shards == plan_shards("train", rows, per_shard)


def test_known_plan() -> None:
    shards = plan_shards("dev_1", 10, 4)
    assert [(shard.start, shard.stop) for shard in shards] == [(0, 3), (3, 6), (6, 10)]
    assert shards[2].path == "examples/dev_1-00002-of-00003.parquet"


def test_shards_written_in_any_order_make_the_same_set(tmp_path: Path, opinion_set: ExampleSet) -> None:
    planned = staged(opinion_set.record)
    schema = planned.arrow_schema()
    start_set(tmp_path / "new", planned, opinion_set.tokenizer_json())
    for number, shard in enumerate(reversed(planned.shards)):
        assert len(unfinished_shards(tmp_path / "new", planned)) == len(planned.shards) - number
        table = pq.read_table(opinion_set.root / shard.path, partitioning=None)
        write_shard(tmp_path / "new", planned, shard, [table.cast(schema)])
    complete = complete_set(tmp_path / "new", planned)
    assert complete.state == "complete"
    done = finish_set(tmp_path / "new", complete, opinion_set.record.scores)
    assert done == opinion_set.record == read_set_record(tmp_path / "new")


def test_starting_again_opens_what_is_there(tmp_path: Path, opinion_set: ExampleSet) -> None:
    planned = staged(opinion_set.record)
    own = opinion_set.tokenizer_json()
    start_set(tmp_path, planned, own)
    again = start_set(tmp_path, planned.model_copy(update={"command": "another", "created": "later"}), "other")
    assert again == planned
    assert (tmp_path / "tokenizer.json").read_text() == own


def test_other_settings_are_refused_by_name(tmp_path: Path, opinion_set: ExampleSet) -> None:
    planned = staged(opinion_set.record)
    start_set(tmp_path, planned, "{}")
    other = staged(opinion_set.record, max_seq_length=64, **{"augment.seed": 3})
    with pytest.raises(FingerprintMismatchError) as caught:
        start_set(tmp_path, other, "{}")
    message = str(caught.value)
    assert "max_seq_length: 32" in message
    assert "augment.seed: " in message
    assert "precision" not in message
    assert "--name" in message
    assert read_set_record(tmp_path) == planned


def test_other_shards_are_refused(tmp_path: Path, opinion_set: ExampleSet) -> None:
    planned = staged(opinion_set.record)
    start_set(tmp_path, planned, "{}")
    other = planned.model_copy(update={"shards": tuple(plan_shards("train", 96, 96))})
    with pytest.raises(FingerprintMismatchError, match=naming("6 files", "--rows-per-shard")):
        start_set(tmp_path, other, "{}")


def test_missing_shard_keeps_the_set_open(own_set: ExampleSet) -> None:
    planned = staged(own_set.record)
    (own_set.root / planned.shards[2].path).unlink()
    assert unfinished_shards(own_set.root, planned) == [planned.shards[2]]
    with pytest.raises(IntegrityError, match=naming("1 of 6 shards")):
        complete_set(own_set.root, planned)


@pytest.mark.parametrize("damage", ["torn", "empty", "swapped", "changed"])
@pytest.mark.parametrize("finished", [True, False])
def test_damaged_shard_is_unfinished(own_set: ExampleSet, damage: str, finished: bool) -> None:
    record = own_set.record if finished else staged(own_set.record)
    path, sibling = (own_set.root / shard.path for shard in record.shards[:2])
    data = path.read_bytes()
    changed = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    path.write_bytes({"torn": data[:-20], "empty": b"", "swapped": sibling.read_bytes(), "changed": changed}[damage])
    # Before a set is finished no hash is known, so a changed byte is found when every row is verified.
    found = [] if damage == "changed" and not finished else [record.shards[0]]
    assert unfinished_shards(own_set.root, record) == found


def test_shard_of_another_run_is_unfinished(own_set: ExampleSet) -> None:
    other = staged(own_set.record, precision="bf16")
    assert unfinished_shards(own_set.root, other) == list(other.shards)


def test_completing_clears_leftovers(own_set: ExampleSet) -> None:
    leftover = own_set.root / "examples" / ".train-00000-of-00004.parquet.99.distill-tmp"
    leftover.touch()
    complete_set(own_set.root, staged(own_set.record))
    assert not leftover.exists()
    with pytest.raises(IntegrityError, match=naming("'complete'", "--allow-unverified")):
        ExampleSet.open(own_set.root)
    assert ExampleSet.open(own_set.root, allow_unverified=True).record.num_rows == 136
