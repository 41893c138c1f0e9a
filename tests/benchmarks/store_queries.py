"""Typical queries to a store of many rows, and the same without pruning: python -m tests.benchmarks.store_queries.

Sets, splits and files are those of a real store; the rows are random, of realistic width, with a few tokens each.
"""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, models

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.query.catalog import open_catalog
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard, SplitRecord, TaskRecord, TeacherRecord, TokenizerRecord, fingerprint
from pipeline.sets.registry import example_columns
from pipeline.sets.signals import Logits, Signals
from pipeline.sets.write import complete_set, plan_shards, start_set, write_shard
from pipeline.sql.read_only_query import select, to_arrow
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import tokenizer_sha256

ROW_KINDS, SETS, CLASSES, WORDS, ROWS_PER_SHARD = 10_000_000, 4, 3, 2000, 250_000
ROUNDS = 3
TARGET = Target(kind="classes", names=tuple(f"class {k}" for k in range(CLASSES)))
SPLITS = {"train": 0.9, "validation": 0.05, "test": 0.05}
# each query, and the condition by which files are left out
QUERIES: dict[str, tuple[str, str | None]] = {
    "rows by split": ("select split, count(*) from set_0 group by all", None),
    "entropy by label": ("select label, avg(entropy(logits)) from set_0 group by all", None),
    "calibration of a split": ("from calibration(set_0) where {}", "split = 'validation'"),
    "hardest ten of a split": ("from hardest(set_0) where {} limit 10", "split = 'validation'"),
    "hardest ten of a set": ("from hardest(set_0) limit 10", None),
    "one row by key": ("from set_0 where {}", "split = 'train' and source_row = 1234 and variant = 0"),
    "agreement of two sets": ("from agreement(set_0, set_1)", None),
    "a split of a set through examples": (
        "select avg(margin(logits)) from examples where {}",
        "\"set\" = 'set-1' and split = 'test'",
    ),
    "entropy by set and split": ('select "set", split, avg(entropy(logits)) from examples group by all', None),
}
UNPRUNED = "({} or random() > 1)"  # the same rows, but nobody can know before they are read


def write_store(store: Path, num_rows: int) -> None:
    """Writes the sets; their rows are the same texts in the same order, with other logits."""
    for number in range(SETS):
        _write_set(store / f"set-{number}", num_rows // SETS, number)


def alternatives(store: Path) -> dict[str, Callable[[], object]]:
    """Each query, and where that means something the same without pruning."""

    def run(query: str) -> object:
        with open_catalog(store) as connection:
            return to_arrow(select(connection, query)).num_rows

    named = {name: query.format(condition) for name, (query, condition) in QUERIES.items()}
    for name, (query, condition) in QUERIES.items():
        if condition is not None:
            named[f"{name}, unpruned"] = query.format(UNPRUNED.format(condition))
    return {name: lambda query=query: run(query) for name, query in named.items()}  # type: ignore[misc]


def _write_set(root: Path, num_rows: int, seed: int) -> None:
    tokenizer_json = str(Tokenizer(models.WordLevel({f"word{k}": k for k in range(WORDS)}, unk_token="word0")).to_str())  # noqa: S106
    shards = [s for split, share in SPLITS.items() for s in plan_shards(split, int(num_rows * share), ROWS_PER_SHARD)]
    record = start_set(root, _record(root.name, shards, tokenizer_json, num_rows), tokenizer_json)
    for shard in record.shards:
        write_shard(root, record, shard, [_rows(shard, seed)])
    complete_set(root, record)


def _rows(shard: Shard, seed: int) -> pa.Table:
    count = shard.stop - shard.start
    texts = np.random.default_rng([shard.index, len(shard.split)])
    said = np.random.default_rng([seed, shard.index, len(shard.split)])
    ids = texts.integers(WORDS, size=count * 8, dtype=np.uint16)
    offsets = np.arange(0, count * 8 + 1, 8, dtype=np.int32)
    ids_list = pa.ListArray.from_arrays(offsets, ids)
    words = pa.array([f"word{k}" for k in range(WORDS)]).take(pa.array(ids))
    sentences = pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")
    logits = pa.FixedSizeListArray.from_arrays(said.normal(0, 2, count * CLASSES).astype(np.float32), CLASSES)
    return pa.table(
        {
            "split": pa.array([shard.split]).take(np.zeros(count, dtype=np.int8)),
            "source_row": np.arange(shard.start, shard.stop),
            "variant": np.zeros(count, dtype=np.int32),
            "origin": pa.array(["original"]).take(np.zeros(count, dtype=np.int8)),
            "sentence1": sentences,
            "sentence2": sentences.take(np.roll(np.arange(count), 1)),
            "ids1": ids_list,
            "ids2": ids_list,
            "text_hash": pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(texts.bytes(16 * count))]),
            "label": texts.integers(CLASSES, size=count, dtype=np.int32),
            "score": pa.nulls(count, pa.float32()),
            "logits": logits,
        },
        schema=pa.schema([*example_columns(WORDS), *Logits(target=TARGET).columns()]),
    )


def _record(name: str, shards: list[Shard], tokenizer_json: str, num_rows: int) -> SetRecord:
    settings: dict[str, str | int | float | bool] = {"benchmark": name, "rows": num_rows}
    splits = {split: int(num_rows * share) for split, share in SPLITS.items()}
    return SetRecord(
        name=name,
        state="staged",
        created="2026-01-01T00:00:00+00:00",
        command="python -m tests.benchmarks.store_queries",
        teacher=TeacherRecord(name=name, revision=None, weights_sha256="0" * 64, num_parameters=0, labels=TARGET.names),
        tokenizer=TokenizerRecord(sha256=tokenizer_sha256(tokenizer_json), vocabulary_size=WORDS, pad_id=0),
        max_seq_length=32,
        precision="fp32",
        source="random",
        splits={s: SplitRecord(rows=n, expected_rows=None, rows_sha256="0" * 64) for s, n in splits.items()},
        settings=settings,
        fingerprint=fingerprint(settings),
        shards=tuple(shards),
        task=TaskRecord(name="random", version=1, is_pair=True, metrics=("accuracy",), licence="CC0-1.0"),
        kind="examples",
        signals=Signals(logits=Logits(target=TARGET)),
    )


def main() -> None:
    """Writes the store and times the queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROW_KINDS, help="rows of all sets together")
    parser.add_argument("--folder", type=Path, help="where the store is written, and kept")
    arguments = parser.parse_args()
    store = (arguments.folder or Path(mkdtemp())) / "store"
    if not store.is_dir():
        write_store(store, arguments.rows)
    seconds = interleaved(alternatives(store), rounds=ROUNDS)
    rows = [
        [name, seconds[name] * 1000, seconds[other] * 1000 if (other := f"{name}, unpruned") in seconds else None]
        for name in QUERIES
    ]
    columns = ["query", "ms", "unpruned ms"]
    console.print_table(columns, rows, title=f"{arguments.rows:,} rows in {SETS} sets, median of {ROUNDS}")
    console.print_json([dict(zip(columns, row, strict=True)) for row in rows])
    if arguments.folder is None:
        shutil.rmtree(store.parent)


if __name__ == "__main__":
    main()
