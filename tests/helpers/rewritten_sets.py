"""Sets that differ from a given one in what a test wants, written by the project's own writer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.sets.kinds.examples import ExampleSet, text_hash
from pipeline.sets.record_parts import fingerprint
from pipeline.sets.signals import Logits
from pipeline.sets.write import complete_set, finish_set, plan_shards, start_set, write_shard
from pipeline.sources import rows_sha256
from pipeline.text.tokenizer import tokenizer_sha256

Row = dict[str, Any]
Change = Callable[[str, list[Row]], list[Row] | None]


def rewritten(
    source: ExampleSet, root: Path, change: Change, names: tuple[str, ...] | None = None, new_tokenizer: bool = False
) -> ExampleSet:
    """Writes another set with the rows of one, changed.

    Args:
        source: the set whose rows are taken.
        root: folder of the new one.
        change: makes the rows of a split from those of the source, in the order of their keys; None: no such split.
        names: names of its labels.
        new_tokenizer: give it a tokenizer with another hash.
    """
    record = source.record
    target = record.target if names is None else record.target.model_copy(update={"names": names})
    content = json.loads(source.tokenizer_json()) | ({"decoder": {"type": "Fuse"}} if new_tokenizer else {})
    tokenizer_json = json.dumps(content)
    tokenizer = record.tokenizer.model_copy(update={"sha256": tokenizer_sha256(tokenizer_json)})
    signals = record.signals.model_copy(update={"logits": Logits(target=target)})
    schema = record.model_copy(update={"signals": signals, "tokenizer": tokenizer}).arrow_schema()
    made = {split: change(split, source.read(split, tuple(schema.names)).to_pylist()) for split in source.splits}
    changed = {split: rows for split, rows in made.items() if rows is not None}
    for row in (row for rows in changed.values() for row in rows if row["sentence1"] is not None):
        row["text_hash"] = text_hash(tokenizer.sha256, row["sentence1"], row["sentence2"])
    hashes = {split: hash_of([row for row in rows if row["variant"] == 0]) for split, rows in changed.items()}
    counts = {split: 1 + max((row["source_row"] for row in rows), default=-1) for split, rows in changed.items()}
    settings = record.settings | {"written_as": root.name}
    planned = record.model_copy(
        update={
            "name": root.name,
            "state": "staged",
            "signals": signals,
            "tokenizer": tokenizer,
            "settings": settings,
            "fingerprint": fingerprint(settings),
            "splits": {
                split: record.splits[split].model_copy(update={"rows": n, "rows_sha256": hashes[split]})
                for split, n in counts.items()
            },
            "shards": tuple(shard for split, n in counts.items() for shard in plan_shards(split, n, n or 1)),
        }
    )
    started = start_set(root, planned, tokenizer_json)
    for shard in started.shards:
        write_shard(root, started, shard, [pa.Table.from_pylist(changed[shard.split], schema)])
    finish_set(root, complete_set(root, started), {})
    return ExampleSet.open(root)


def with_logits(logits: Callable[[int], list[float]]) -> Callable[[str, list[Row]], list[Row]]:
    """Gives every row the logits that a function makes of its source row."""
    return lambda _, rows: [row | {"logits": logits(row["source_row"])} for row in rows]


def hash_of(rows: list[Row]) -> str:
    """The hash of the texts and gold of source rows."""
    types = {"sentence1": pa.string(), "sentence2": pa.string(), "label": pa.int32(), "score": pa.float32()}
    return rows_sha256(pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}))
