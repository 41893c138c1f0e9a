"""Checks the rows of a set of examples, in small batches, as they may come from anywhere."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.sets.examples import text_hash
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import UNLABELLED, Shard
from pipeline.sets.shard_file import which_are
from pipeline.sources.source import HASHED_COLUMNS, hash_rows
from pipeline.tasks.task import TRAIN

ROWS_AT_ONCE = 4096
MAX_TEXT_BYTES = 2**28  # of the rows read at once
TEXTS = ["sentence1", "sentence2"]
Key = tuple[int, int]


@dataclass
class Tally:
    """What is counted over all shards of a split: source rows, variants, and the hash of texts and gold."""

    originals: int = 0
    variants: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @property
    def rows_sha256(self) -> str:
        """What `pipeline.sources.rows_sha256` gives for the source rows."""
        return self.digest.hexdigest()


class ExamplesCheck:
    """Checks the examples of a set, shard by shard."""

    def __init__(self, record: SetRecord) -> None:
        self._record = record
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Says what is wrong inside a shard; stops at the first batch that is wrong, and adds the others up."""
        record, tally = self._record, self._tallies[shard.split]
        last: Key = (-1, 0)
        num_rows, before = 0, tally.originals
        # texts are read as a dictionary: one long text that a small file repeats a million times stays one
        texts = ["origin", *(TEXTS if record.has_text else [])]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                rows = pa.Table.from_batches([batch])
                problem = _problem(record, shard, rows, last)
                if problem:
                    return problem
                last = (rows.column("source_row")[-1].as_py(), rows.column("variant")[-1].as_py())
                _add(tally, record, rows)
                num_rows += rows.num_rows
        if num_rows != shard.rows:
            return f"{num_rows:,} rows, but distill.json says {shard.rows or 0:,}"
        described = record.splits.get(shard.split)
        if described and not described.absent and tally.originals - before != shard.stop - shard.start:
            return f"the source rows {shard.start:,} to {shard.stop:,} are not there exactly once"
        return None

    def split_problems(self) -> list[str]:
        """Says which splits have not the source rows that the record describes, or the set not its variants."""
        record, problems = self._record, []
        for split, described in record.splits.items():
            tally, expected = self._tallies[split], described.rows - described.absent
            if tally.originals != expected:
                problems.append(f"split {split!r}: {tally.originals:,} source rows, but distill.json says {expected:,}")
            elif not described.absent and record.has_text and tally.rows_sha256 != described.rows_sha256:
                problems.append(f"split {split!r}: its texts and gold are not those whose hash distill.json gives")
        variants = sum(tally.variants for tally in self._tallies.values())
        if record.augmentation is not None and variants != record.augmentation.rows:
            problems.append(f"{variants:,} variants, but distill.json says {record.augmentation.rows:,}")
        return problems


def _problem(record: SetRecord, shard: Shard, rows: pa.Table, last: Key) -> str | None:
    problem = _key_problem(record, shard, rows, last) or _gold_problem(record, rows)
    for signal in record.signals.stored:
        problem = problem or signal.problem(rows)
    return problem or (_text_problem(record, rows) if record.has_text else None)


def _add(tally: Tally, record: SetRecord, rows: pa.Table) -> None:
    originals = rows.filter(pc.equal(rows.column("variant"), 0))
    tally.originals += originals.num_rows
    tally.variants += rows.num_rows - originals.num_rows
    if record.has_text:
        for batch in originals.select(HASHED_COLUMNS).to_batches():
            hash_rows(tally.digest, batch)


def _key_problem(record: SetRecord, shard: Shard, rows: pa.Table, last: Key) -> str | None:
    source_R, variant_R = rows.column("source_row").to_numpy(), rows.column("variant").to_numpy()
    if ((source_R < shard.start) | (source_R >= shard.stop)).any():
        return f"holds source rows outside {shard.start:,} to {shard.stop:,}"
    before_R = np.concatenate([[last[0]], source_R[:-1]]), np.concatenate([[last[1]], variant_R[:-1]])
    ascends_R = (source_R > before_R[0]) | ((source_R == before_R[0]) & (variant_R > before_R[1]))
    if not ascends_R.all():
        row = int(np.flatnonzero(~ascends_R)[0])
        return f"its keys do not ascend at source row {source_R[row]}, so that one may be there twice"
    return _origin_problem(record, shard, rows)


def _origin_problem(record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
    source_R, variant_R = rows.column("source_row").to_numpy(), rows.column("variant").to_numpy()
    is_variant_R, is_unlabelled_R = variant_R != 0, np.zeros(rows.num_rows, dtype=bool)
    if record.unlabelled is not None and shard.split == TRAIN:
        is_unlabelled_R = source_R >= record.unlabelled.first_row
    if is_variant_R.any() and (record.augmentation is None or shard.split != record.augmentation.split):
        return "holds variants, but distill.json tells of none there"
    gold_R = pc.or_(*(pc.is_valid(rows.column(name)) for name in ("label", "score"))).to_numpy()
    if (variant_R < 0).any() or (gold_R & is_variant_R).any():
        return "a variant has gold, or a number below 0"
    if (is_unlabelled_R & (gold_R | is_variant_R)).any():
        return "an unlabelled row has gold, or variants"
    if (which_are(rows.column("origin"), "original") == (is_variant_R | is_unlabelled_R)).any():
        return "the origin of a row is wrong: it is 'original' for variant 0 of the task's own rows, and for no other"
    if (which_are(rows.column("origin"), UNLABELLED) != is_unlabelled_R).any():
        return f"the origin of a row is wrong: it is {UNLABELLED!r} for the unlabelled rows, and for no other"
    return None


def _gold_problem(record: SetRecord, rows: pa.Table) -> str | None:
    num_labels = record.target.num_logits if record.target.has_labels else 0
    label = rows.column("label")
    if record.target.kind == "labels":
        lists = label.combine_chunks()
        label, parent_L = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
        if label.null_count or ((np.diff(label.to_numpy()) <= 0) & (np.diff(parent_L) == 0)).any():
            return "the labels of a row do not ascend, or are null"
    labels = pc.min_max(label).as_py()
    if labels["max"] is not None and not 0 <= labels["min"] <= labels["max"] < num_labels:
        return f"has labels from {labels['min']} to {labels['max']}, but the task has {num_labels} labels"
    if pc.any(pc.invert(pc.is_finite(rows.column("score")))).as_py():
        return "a gold score is not finite"
    return None


def _text_problem(record: SetRecord, rows: pa.Table) -> str | None:
    for name in ("ids1", "ids2"):
        ids = rows.column(name).combine_chunks()
        absent = 0 if name == "ids1" or record.is_pair else len(ids)
        if ids.null_count != absent or ids.flatten().null_count:
            return f"{name} is null somewhere, or is there although there is no second sentence"
        if (pc.max(pc.list_value_length(ids)).as_py() or 0) > record.max_seq_length:
            return f"{name} is longer than {record.max_seq_length} tokens somewhere"
        if (pc.max(ids.flatten()).as_py() or 0) >= record.tokenizer.vocabulary_size:
            return f"{name} holds an id beyond the tokenizer's vocabulary of {record.tokenizer.vocabulary_size:,}"
    texts = [rows.column(name).combine_chunks() for name in TEXTS]
    if sum(_decoded_bytes(text) for text in texts) > MAX_TEXT_BYTES:
        return f"the texts of {rows.num_rows:,} rows have more than {MAX_TEXT_BYTES:,} bytes"
    if texts[0].null_count or texts[1].null_count not in ({0} if record.is_pair else {len(rows)}):
        return "a sentence is missing, or one too many"
    hashes = rows.column("text_hash").to_pylist()
    for row, (first, second, expected) in enumerate(zip(*(text.to_pylist() for text in texts), hashes, strict=True)):
        if text_hash(record.tokenizer.sha256, first, second) != expected:
            return f"text_hash of source row {rows.column('source_row')[row]} does not belong to its text"
    return None


def _decoded_bytes(text: pa.DictionaryArray) -> int:
    lengths = pc.binary_length(text.dictionary)
    return pc.sum(lengths.take(text.indices)).as_py() or 0
