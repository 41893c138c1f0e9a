"""A tiny task of labelled words with a random teacher, and its set."""

from pathlib import Path

import pyarrow as pa
from torch.nn import init

from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.record_parts import fingerprint
from pipeline.sets.write import complete_and_verify, start_set, write_shard
from teacher.dumps import dump
from teacher.settings import DumpSettings
from teacher.tiny import create_tiny_bert
from tests.helpers.entities import write_entities
from tests.helpers.new_teachers import save_new_teacher

TRAIN_ROWS, VALIDATION_ROWS = 60, 30


def write_random_teacher(folder: Path, train_rows: int = TRAIN_ROWS) -> Path:
    """Writes rows, manifest, encoder and a classifier of words with a random head into a folder; returns the latter."""
    create_tiny_bert(folder / "bert", write_entities(folder, train_rows, VALIDATION_ROWS), hidden_size=32, num_layers=1)
    return save_new_teacher(
        folder / "entities.yaml", folder / "bert", folder / "teacher", change=lambda head: init.normal_(head.weight)
    )


def dump_entities(folder: Path, **changes: object) -> TokenLabelSet:
    """The verified set of such a teacher, whose files must lie in the folder."""
    flags = {"manifest": folder / "entities.yaml", "data": folder, "model_name_or_path": str(folder / "teacher")}
    small = {"store": folder / "store", "max_seq_length": 32, "rows_per_shard": 25}
    config = DumpSettings.from_flags(**flags | small | changes)
    record = dump(config, "distill teacher-dump")
    assert record is not None
    return TokenLabelSet.open(config.place.store / record.name)


def right_teacher(words: TokenLabelSet) -> TokenLabelSet:
    """The same set with the logits of a teacher that is always right, in a folder beside it."""
    root = words.root.with_name("right")
    settings = words.record.settings | {"written_as": root.name}
    parts = {"name": root.name, "settings": settings, "fingerprint": fingerprint(settings), "state": "staged"}
    shards = tuple(shard.unmeasured() for shard in words.record.shards)
    started = start_set(root, words.record.model_copy(update=parts | {"shards": shards}), words.tokenizer_json())
    for shard in words.record.shards:
        table = next(words.read_shard(shard))
        logits = [
            [[5.0 * (label == number) for number in range(7)] for label in (labels[word] for word in word_ids)]
            for labels, word_ids in zip(*(table.column(n).to_pylist() for n in ("label", "word_ids")), strict=True)
        ]
        place = table.schema.get_field_index("logits")
        column = pa.array(logits, table.schema.field(place).type)
        write_shard(root, started, shard, [table.set_column(place, table.schema.field(place), column)])
    return TokenLabelSet(root, complete_and_verify(root, started))
