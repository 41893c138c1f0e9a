"""Sets with invented layer outputs, made without a teacher."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.files import make_folder, sha256
from pipeline.sets.codecs.vectors import vector_codec
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import expected_rows, layer_file, num_specials, record_layers
from pipeline.sets.record import changed, write_set_record
from pipeline.sets.signals import States

WIDTH = 4


def with_states(logit_set: ExampleSet) -> ExampleSet:
    """Gives a set states of layer 1, numbers drawn at random."""
    root, record, draw = logit_set.root, logit_set.record, np.random.default_rng(1)
    signal, specials = States(layers=(1,), codec=vector_codec("float32", WIDTH)), num_specials(root, record)
    make_folder(root / signal.name)
    for shard in record.shards:
        rows = expected_rows(root / shard.path, signal, specials)
        length_R = rows.column("length").to_numpy()
        said = [draw.normal(size=(length, WIDTH)).astype(np.float32) for length in length_R]
        keys = rows.select(["source_row", "variant"]).add_column(0, "split", pa.array([shard.split] * len(rows)))
        with layer_file(root, record, signal, shard.in_folder(signal.name)) as write:
            write(signal.table(keys, length_R, {1: said}, {}))
    record_layers(root, record, [signal])
    return ExampleSet.open(root)


def rerecord_states(logit_set: ExampleSet, path: Path, rows: int) -> ExampleSet:
    """The set, with the present size and hash of a file of states in its record."""
    record, states = logit_set.record, logit_set.record.signals.states
    assert states is not None
    new = {"rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path)}
    shards = tuple(
        shard.model_copy(update=new) if logit_set.root / shard.path == path else shard for shard in states.shards
    )
    signals = record.signals.model_copy(update={"states": states.model_copy(update={"shards": shards})})
    write_set_record(logit_set.root, changed(record, signals=signals))
    return ExampleSet.open(logit_set.root)
