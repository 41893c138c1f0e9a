"""Hostile files of layers in a set that is otherwise honest and claims to be verified."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import group_writer, layer_footer, open_layers
from pipeline.sets.verify import verify_shards
from tests.helpers.layer_sets import WIDTH, rerecord_states, with_states
from tests.helpers.messages import naming


def test_numbers_that_the_rows_have_no_room_for_are_not_read(own_set: ExampleSet) -> None:
    logit_set = with_states(own_set)
    root, record, signal = logit_set.root, logit_set.record, logit_set.record.signals.states
    assert signal is not None
    assert len(open_layers(logit_set, "states", "train")) == record.rows_of("train")
    shard = next(shard for shard in signal.shards if shard.split == "train")
    path = root / shard.path
    table = pq.read_table(path, partitioning=None).replace_schema_metadata(None)
    lists = table.column("states_1").combine_chunks()
    longer = np.concatenate([lists.flatten().to_numpy(), np.zeros(100_000, dtype=np.float32)])
    offsets = np.concatenate([lists.offsets.to_numpy()[:-1], [len(longer)]]).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(longer))
    with group_writer(path, signal, layer_footer(record, signal, shard)) as write:
        write(table.set_column(table.schema.get_field_index("states_1"), table.schema.field("states_1"), column))
    chunk = next(c for c in map(pq.read_metadata(path).row_group(0).column, range(5)) if "states_1" in c.path_in_schema)
    content = bytearray(path.read_bytes())
    page = slice(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
    content[page] = b"\xff" * (page.stop - page.start)  # whoever reads it, fails
    path.write_bytes(content)
    hostile = rerecord_states(logit_set, path, table.num_rows)
    right = WIDTH * int(table.column("length").to_numpy().astype(np.int64).sum())
    message = naming("states_1", f"{right + 100_000:,}", f"{right:,}")
    with pytest.raises(IntegrityError, match=message):
        open_layers(hostile, "states", "train")
    with pytest.raises(IntegrityError, match=message):
        verify_shards(root, hostile.record)
