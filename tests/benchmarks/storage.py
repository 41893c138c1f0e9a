"""What sets take on disk, column by column, and how fast they are written and fed: python -m tests.benchmarks.storage.

Rows are random, of realistic lengths; what a text takes depends on the text, so there is none. ``--set`` measures
the columns of a set that is there instead.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import console
from pipeline.arrays import Floats64, Ints, Ragged
from pipeline.sets.codecs.codec import lists
from pipeline.sets.codecs.distributions import TopKCodec
from pipeline.sets.files import read_statistics
from pipeline.sets.kinds.masked_words import MaskedRows, MaskedWordSet, no_statistics, rows_per_group, tokens_table
from pipeline.sets.registry import TEXT_COLUMNS, example_columns
from pipeline.sets.signals import Logits
from pipeline.sets.write import complete_set, finish_set, start_set, write_shard
from pipeline.tasks.target import Target
from student.lessons.masked_words import masked_batches
from tests.helpers.shards import write_examples
from tests.helpers.token_sets import record_of, word_tokenizer

ROW_KINDS, POSITIONS, CLASSES, VOCABULARY, TOP_K, BATCH = 1_000_000, 200_000, 3, 30522, 64, 256
POSITIONS_PER_ROW = 4
CODEC = TopKCodec(vocabulary_size=VOCABULARY, top_k=TOP_K)
TARGET = Target(kind="classes", names=tuple(f"class {k}" for k in range(CLASSES)))


def zipf(random: np.random.Generator, count: int) -> Ints:
    """Token ids, the number k about 1 / k times as often as the first."""
    return np.exp(random.random(count) * math.log(VOCABULARY)).astype(np.int64) - 1


def sentences(random: np.random.Generator, count: int) -> Ragged:
    """Rows of 13.2 ids in the mean, 60 at most."""
    lengths = np.clip(random.lognormal(math.log(11.5), 0.55, count).round().astype(np.int64), 2, 60)
    return Ragged(zipf(random, int(lengths.sum())), np.concatenate([[0], np.cumsum(lengths)]))


def examples_table(count: int) -> pa.Table:
    """Rows of a task with three classes, whose sentences are left out."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, count * CLASSES).astype(np.float32)
    hashes = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(random.bytes(16 * count))])
    columns = {
        "split": pa.repeat("train", count),
        "source_row": np.arange(count),
        "variant": np.zeros(count, dtype=np.int32),
        "origin": pa.repeat("original", count),
        "sentence1": pa.nulls(count, pa.string()),
        "sentence2": pa.nulls(count, pa.string()),
        "ids1": sentences(random, count).column(pa.uint16()),
        "ids2": pa.nulls(count, pa.list_(pa.uint16())),
        "text_hash": hashes,
        "label": random.integers(CLASSES, size=count, dtype=np.int32),
        "score": pa.nulls(count, pa.float32()),
        "logits": pa.FixedSizeListArray.from_arrays(logits, CLASSES),
    }
    return pa.table(columns, schema=pa.schema([*example_columns(VOCABULARY), *Logits(target=TARGET).columns()]))


def likeliest(random: np.random.Generator, count: int) -> dict[str, pa.Array]:
    """The codec's columns: ids by frequency, log-probabilities that fall with the logarithm of the rank."""
    steps: Floats64 = random.exponential(1 / np.arange(1, TOP_K + 1), (count, TOP_K)) * random.uniform(
        0.8, 2, (count, 1)
    )
    log_probs = (-0.3 - steps.cumsum(axis=1)).astype(np.float16).view(np.uint16)
    counts = np.full(count, TOP_K)
    return {
        "candidates": lists(zipf(random, count * TOP_K), counts, pa.uint16()),
        "log_probs": lists(log_probs.ravel(), counts, pa.uint16()),
        "log_z": pa.array(random.normal(20, 4, count).astype(np.float32)),
    }


def token_groups(num_positions: int) -> Iterator[pa.Table]:
    """Row groups of masked sentences, as large as those of a dump."""
    random = np.random.default_rng(0)
    size = rows_per_group(CODEC)
    for start in range(0, num_positions // POSITIONS_PER_ROW, size):
        count = min(size, num_positions // POSITIONS_PER_ROW - start)
        number, every = np.arange(start, start + count), np.arange(POSITIONS_PER_ROW)
        ids = Ragged.of([row.tolist() for row in np.split(zipf(random, count * 26), count)])
        places = Ragged.of([np.sort(random.choice(26, POSITIONS_PER_ROW, replace=False)).tolist() for _ in number])
        targets = Ragged(zipf(random, count * len(every)), places.offsets)
        rows = MaskedRows(number, 0 * number, 0 * number, ids, places, targets)
        yield tokens_table(CODEC, "train", rows, likeliest(random, count * len(every)))


def write_token_set(root: Path, num_positions: int) -> float:
    """Writes a verified set; returns the seconds of writing its one shard of training rows."""
    tokenizer_json = word_tokenizer({f"word{k}": k for k in range(VOCABULARY)})
    planned = record_of(CODEC, tokenizer_json)
    rows = num_positions // POSITIONS_PER_ROW
    shard = planned.shards[0].model_copy(update={"count": 1, "start": 0, "stop": rows})
    splits = {"train": planned.splits["train"].model_copy(update={"rows": rows})}
    changes = {"shards": (shard,), "splits": splits, "max_seq_length": 64}
    record = start_set(root, planned.model_copy(update=changes), tokenizer_json)
    tables, statistics = list(token_groups(num_positions)), no_statistics()
    statistics["positions"] = num_positions
    start = time.perf_counter()
    write_shard(root, record, shard, tables, statistics)
    seconds = time.perf_counter() - start
    complete = complete_set(root, record)
    finish_set(root, complete, {})
    return seconds


def feed(root: Path) -> dict[str, float]:
    """Goes through a set as `pretrain-student` does, to the distributions; in a process of its own."""
    token_set = MaskedWordSet.open(root)
    codec = token_set.record.codec
    decoder = token_set.decoder()
    batches = masked_batches(token_set, 0, BATCH, seed=0)
    before, positions, start = _peak_bytes(), 0, time.perf_counter()
    for step in range(batches.num_steps(1)):
        batch = batches.at(step)
        codec.decode(batch.predictions, codec.stored_temperature, decoder)
        positions += len(batch.row_P)
    seconds = time.perf_counter() - start
    return {"positions/s": positions / seconds, "extra MB": (_peak_bytes() - before) / 1e6}


def _peak_bytes() -> int:
    """The most memory that this program has had; ``ru_maxrss`` would also count what started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def bytes_by_column(paths: list[Path], count: int) -> list[list[object]]:
    """Compressed bytes of each column over a number of rows or positions, and of the whole files."""
    sums: dict[str, int] = {}
    for path in paths:
        metadata = pq.read_metadata(path)
        for group in (metadata.row_group(k) for k in range(metadata.num_row_groups)):
            for column in (group.column(k) for k in range(metadata.num_columns)):
                name = column.path_in_schema.partition(".")[0]
                sums[name] = sums.get(name, 0) + column.total_compressed_size
    whole = sum(path.stat().st_size for path in paths)
    sums["footer and page index"] = whole - sum(sums.values())
    return [*([name, size / count] for name, size in sums.items()), ["all", whole / count]]


def measure_examples(folder: Path, num_rows: int) -> None:
    """Writes and reports a set of examples with ids, and one that has neither text nor ids."""
    table = examples_table(num_rows)
    for title, part in (("with ids", table), ("without text", table.drop_columns(list(TEXT_COLUMNS)))):
        path = folder / f"{title}.parquet"
        start = time.perf_counter()
        write_examples(path, part, {})
        rate = num_rows / (time.perf_counter() - start)
        title = f"{num_rows:,} examples, {title}: {rate / 1e6:.2f} M rows/s written"
        console.print_table(["column", "bytes a row"], bytes_by_column([path], num_rows), title=title)


def measure_tokens(root: Path) -> None:
    """Reports a set of tokens, and how fast it is fed."""
    token_set = MaskedWordSet.open(root)
    paths = [root / shard.path for shard in token_set.shards("train")]
    positions = int(sum(read_statistics(path)["positions"] for path in paths))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        fed = pool.apply(feed, (root,))
    spoken = ", ".join(f"{name} {value:,.0f}" for name, value in fed.items())
    title = f"{positions:,} positions, {token_set.record.codec}; feed: {spoken}"
    console.print_table(["column", "bytes a position"], bytes_by_column(paths, positions), title=title)


def main() -> None:
    """Writes random sets and measures them, or measures one that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROW_KINDS, help="examples to write")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="masked positions to write")
    parser.add_argument("--set", type=Path, help="a set of tokens to measure instead")
    arguments = parser.parse_args()
    if arguments.set:
        measure_tokens(arguments.set)
        return
    with TemporaryDirectory() as folder:
        measure_examples(Path(folder), arguments.rows)
        seconds = write_token_set(Path(folder) / "tokens", arguments.positions)
        console.note(f"{arguments.positions / seconds:,.0f} positions/s written")
        measure_tokens(Path(folder) / "tokens")


if __name__ == "__main__":
    main()
