"""Examples of a task: a row per input and variant, with text, token ids, gold label and the teacher's logits."""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Floats, Ints, id_type
from pipeline.errors import ConfigError
from pipeline.sets.files import which_are
from pipeline.sets.kinds.named_views import CONFUSION, NAMED, named_views
from pipeline.sets.open import LogitSet
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import UNLABELLED, Shard
from pipeline.sets.registry import FORMATS
from pipeline.sets.row_kind import RowKind, RowsCheck, View, hash_of_texts, ids_problem, signals_problem
from pipeline.sets.signals.rows import logits_of
from pipeline.sources import sentences
from pipeline.sources.source import HASHED_COLUMNS
from pipeline.sql.database import variants_view_name, view_name
from pipeline.sql.read_only_query import check_condition, open_files, quoted, select, to_arrow
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import TRAIN
from pipeline.text.tokenizer import Tokenized
from pipeline.text.windows import are_truncated

if TYPE_CHECKING:
    from pipeline.text.text_to_ids import TextReader

KEYS = FORMATS["examples"].keys
# Variant 0 is the unchanged row. Only these rows have gold labels.
ORIGINALS = "variant = 0"
ROWS_AT_ONCE = 4096
HASHED_AT_ONCE = 8192
# Of the rows in one batch: a dictionary can repeat a long text at almost no cost in bytes.
MAX_TEXT_BYTES = 2**28
TEXTS = ("sentence1", "sentence2")
DICTIONARY_COLUMNS = ("split", "origin", "label", "score", "variant")
BYTE_SPLIT_COLUMNS = ("ids1.list.element", "ids2.list.element", "logits.list.element")
SET_ROWS = """select {name} as "set", * replace (ids1::uinteger[] as ids1, ids2::uinteger[] as ids2,
    {label} as label, logits::float[] as logits)
    from (select columns(lambda name: not starts_with(name, 'file_')) from "{view}")"""
VARIANTS = """
create view "{name}" as
select v.* exclude (label, score), struct_pack(
    sentence1 := o.sentence1, sentence2 := o.sentence2, label := o.label, score := o.score, logits := o.logits
) as parent
from "{rows}" v join "{rows}" o using (split, source_row)
where v.variant > 0 and o.variant = 0
"""


class ExamplesKind(RowKind):
    """The inputs of a task. A set of them can be shared without its text."""

    name = "examples"
    can_be_truncated = True
    page_title = "logit set"
    sql_templates = (SET_ROWS, VARIANTS, NAMED, CONFUSION)
    has_common_view = True

    def encodings(self, record: SetRecord) -> dict[str, Any]:
        return example_encodings(record.arrow_schema().names)

    def check(self, record: SetRecord) -> "ExamplesCheck":
        return ExamplesCheck(self, record)

    def is_hashed(self, record: SetRecord) -> bool:
        return record.has_text

    def hashed_rows(self, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        yield from rows.filter(pc.equal(rows.column("variant"), 0)).select(HASHED_COLUMNS).to_batches()

    def batches(self, record: SetRecord, path: Path) -> Iterator[tuple[str, pa.Table]]:
        """Texts are read as a dictionary: one long text that a small file repeats often stays one."""
        with pq.ParquetFile(path, read_dictionary=["origin", *(TEXTS if record.has_text else [])]) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                yield "", pa.Table.from_batches([batch])

    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        return (
            _origin_problem(record, shard, rows)
            or _gold_problem(record, rows)
            or signals_problem(record, rows)
            or (_text_problem(record, rows) if record.has_text else None)
        )

    def views(self, root: Path, record: SetRecord) -> list[View]:
        """A second view joins variants with their original rows."""
        views = [*super().views(root, record), *named_views(root.name, record)]
        if record.augmentation:
            name = variants_view_name(root.name)
            views.append(View(name, VARIANTS.format(name=name, rows=view_name(root.name))))
        return views

    def view_columns(self, record: SetRecord) -> list[str]:
        """The text columns of a set without text are null."""
        ids = "usmallint[]" if id_type(record.tokenizer.vocabulary_size) == pa.uint16() else "uinteger[]"
        of_text = {"sentence1": "varchar", "sentence2": "varchar", "ids1": ids, "ids2": ids}
        stored = record.arrow_schema().names
        names = record.model_copy(update={"has_text": True}).arrow_schema().names
        return [name if name in stored else f"null::{of_text[name]} as {name}" for name in names if name != "split"]

    def common_view(self, sets: Sequence[tuple[str, SetRecord]]) -> View:
        # Sets differ in the width of their ids and in the number of their logits. This view gives all of them the same
        # types. The label of multi-label sets is null here, because it is a list.
        labels = ["null::int" if record.target.has_label_lists else "label" for _, record in sets]
        # The views of all sets need equal column types for `union all`.
        branches = [
            SET_ROWS.format(name=quoted(name), view=view_name(name), label=label)
            for (name, _), label in zip(sets, labels, strict=True)
        ]
        return View(self.name, f'create view "{self.name}" as {" union all ".join(branches)}')

    def summary(self, record: SetRecord) -> str:
        return (
            f"Predictions of {record.teacher.name} for {record.dataset_name}: {record.num_rows:,} rows with its logits."
        )

    def num_truncated(self, path: Path, reader: "TextReader", room: int, by_windows: bool) -> int:
        """Only rows that fill the room are tokenized again."""
        ids = pq.read_table(path, columns=["ids1", "ids2"], partitioning=None)
        # The stored ids are already truncated, so full rows are the only candidates, and few.
        is_full = np.add(*(pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in ids.columns)) >= room
        if not is_full.any():
            return 0
        texts = pq.read_table(path, columns=list(TEXTS), partitioning=None)
        parts = reader.read(*sentences(texts.filter(is_full)), None)
        return int(are_truncated([part.lengths for part in parts], room, by_windows).sum())

    def training_ids(self, path: Path) -> list[pa.ChunkedArray]:
        """Variants and unlabelled rows are not counted."""
        rows = pq.read_table(path, columns=["origin", "ids1", "ids2"], partitioning=None)
        # Variants would count the words of long sentences several times.
        rows = rows.filter(pc.equal(rows.column("origin"), "original"))
        return [rows.column("ids1"), rows.column("ids2")]


def columns_with_text(record: SetRecord, columns: str = "*") -> str:
    """What to select of a set's files, in SQL, so that there are texts; of a set without text they are null."""
    return columns if record.has_text else f"{columns}, null::varchar as sentence1, null::varchar as sentence2"


def example_encodings(names: Container[str]) -> dict[str, Any]:
    """The encodings of these columns: ids and logits byte by byte, which compresses them best.

    For ids that is a seventh better than a dictionary. DuckDB reads that encoding for integers and float32, but not for
    float16.
    """

    def in_table(columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name.partition(".")[0] in names]

    return {
        "use_dictionary": in_table(DICTIONARY_COLUMNS),
        "use_byte_stream_split": in_table(BYTE_SPLIT_COLUMNS),
        "write_statistics": ["split", "source_row", "variant", "origin", "label"],
    }


class ExamplesCheck(RowsCheck):
    """Counts source rows and variants of each split, too."""

    def __init__(self, kind: RowKind, record: SetRecord) -> None:
        super().__init__(kind, record)
        self._originals: Counter[str] = Counter()
        self._variants = 0
        self._before = 0  # source rows of the split in earlier shards

    def begin(self, shard: Shard) -> None:
        self._before = self._originals[shard.split]

    def add(self, shard: Shard, rows: pa.Table) -> None:
        super().add(shard, rows)
        originals = pc.sum(pc.equal(rows.column("variant"), 0)).as_py() or 0
        self._originals[shard.split] += originals
        self._variants += rows.num_rows - originals

    def end_problem(self, shard: Shard, num_rows: int) -> str | None:
        """Every source row of a shard has to occur once, unless the split lacks rows."""
        described, found = self.record.splits.get(shard.split), self._originals[shard.split] - self._before
        # Keys ascend and lie in the shard's range, so equal numbers mean that each row is there exactly once.
        if described and not described.absent and found != shard.stop - shard.start:
            return f"the source rows {shard.start:,} to {shard.stop:,} do not occur exactly once"
        return None

    def split_problems(self) -> list[str]:
        """Returns splits without some of the recorded source rows, or sets without some of their variants."""
        record, problems = self.record, []
        for split, described in record.splits.items():
            found, expected = self._originals[split], described.rows - described.absent
            if found != expected:
                problems.append(f"split {split!r}: {found:,} source rows, but distill.json has {expected:,}")
        if record.augmentation is not None and self._variants != record.augmentation.rows:
            problems.append(f"{self._variants:,} variants, but distill.json has {record.augmentation.rows:,}")
        return problems or super().split_problems()


@dataclass(frozen=True)
class ExampleSet(LogitSet):
    """An opened set of a task's examples."""

    row_kind: ClassVar = ExamplesKind()
    advice: ClassVar = (
        "a set of a task's texts is needed here. Use `distill pretrain-student` for masked words and "
        "sentences, and `train-student` or `evaluate` with only this set for labelled words"
    )

    @classmethod
    def open(cls, path: Path | str, allow_unverified: bool = False, needs_text: bool = True) -> Self:
        """Opens a set of examples for use.

        Raises:
            ConfigError: if it is of another kind, or lacks the required text.
            IntegrityError: if it is not a set, or its state is not ``verified`` and that is not allowed.
        """
        opened = super().open(path, allow_unverified)
        if needs_text and not opened.record.has_text:
            raise ConfigError(f"{path}: contains logits without texts. Add your texts with `distill join` first.")
        return opened

    @property
    def rows_sql(self) -> str:
        return "examples"

    def training_texts(self) -> list[str]:
        rows = self.read(TRAIN, TEXTS, ORIGINALS)
        return [text for part in sentences(rows) if part is not None for text in part]

    def gold(self, split: str) -> tuple[Floats, Ints, Floats]:
        """Returns the teacher's logits [N, C] for a split's source rows, and their gold. See `gold_arrays`."""
        rows = self.read(split, ("label", "score", "logits"), ORIGINALS)
        return logits_of(rows, self.record.target.num_logits), *gold_arrays(self.record.target, rows)

    def scores(self) -> Scores:
        metrics, target = self.record.metrics, self.record.target
        return {split: score_logits(metrics, target, *self.gold(split)) for split in self.record.splits}

    def read_shard(self, shard: Shard, columns: list[str]) -> pa.Table:
        """Some columns of one file, whose bytes have been checked."""
        return pq.read_table(self.root / shard.path, columns=columns, partitioning=None)

    def query(self, split: str, where: str | None = None) -> str:
        """The SQL text of `read` after its columns."""
        self.check_split(split)
        # The line break ends a comment (--) in the user's condition, which would otherwise swallow the closing bracket.
        condition = f" and ({where}\n)" if where else ""
        return f"from {self.rows_sql} where split = '{split}'{condition} order by source_row, variant"

    @contextmanager
    def opened(self, split: str, query: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """Opens the rows of only one split for queries: a view with the name of the set, and ``examples``.

        Args:
            split: name of the split.
            query: SQL that names all macros that will be called, if it is known. Opening is faster without the others.

        Raises:
            IntegrityError: if a file is missing or was changed.
        """
        files = self.checked_files(split)
        # Only the files of this split are opened, so that a query cannot choose dev rows for training by accident.
        with open_files({"examples": files, self.view: files}, query=query) as connection:
            yield connection

    def read(self, split: str, columns: tuple[str, ...], where: str | None = None) -> pa.Table:
        """Reads columns of a split, ordered by key, after checking the checksums of its files.

        Args:
            split: name of a split of the set.
            columns: names of columns, or SQL expressions.
            where: a SQL condition on the columns, which may use macros such as ``margin(logits)``.

        Raises:
            IntegrityError: if a file is missing or was changed.
            QueryError: if the condition is not one SQL expression or fails.
        """
        if where:
            check_condition(where)
        sql = f"select {', '.join(columns)} {self.query(split, where)}"
        with self.opened(split, sql) as connection:
            return to_arrow(select(connection, sql))


def keys_sha256(table: pa.Table) -> str:
    """Returns a hash of the keys in a table, in their order, which identifies the chosen rows."""
    digest = hashlib.sha256()
    for batch in table.select(KEYS).to_batches(max_chunksize=HASHED_AT_ONCE):
        for key in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # The text of Python tuples does not depend on Arrow's memory layout or chunks, so the hash is stable across
            # versions.
            digest.update(repr(key).encode())
    return digest.hexdigest()


def _origin_problem(record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
    source_R, variant_R = rows.column("source_row").to_numpy(), rows.column("variant").to_numpy()
    is_variant_R, is_unlabelled_R = variant_R != 0, np.zeros(rows.num_rows, dtype=bool)
    if record.unlabelled is not None and shard.split == TRAIN:
        is_unlabelled_R = source_R >= record.unlabelled.first_row
    if is_variant_R.any() and (record.augmentation is None or shard.split != record.augmentation.split):
        return "contains variants, but distill.json lists none"
    gold_R = pc.or_(*(pc.is_valid(rows.column(name)) for name in ("label", "score"))).to_numpy()
    if (variant_R < 0).any() or (gold_R & is_variant_R).any():
        return "a variant has gold, or a number below 0"
    if (is_unlabelled_R & (gold_R | is_variant_R)).any():
        return "an unlabelled row has gold, or variants"
    # Students select rows by origin, so a false origin could let augmented rows count as gold.
    if (which_are(rows.column("origin"), "original") == (is_variant_R | is_unlabelled_R)).any():
        return "the origin of a row is wrong: only variant 0 of the task's own rows has 'original'"
    if (which_are(rows.column("origin"), UNLABELLED) != is_unlabelled_R).any():
        return f"the origin of a row is wrong: only unlabelled rows have {UNLABELLED!r}"
    return None


def _gold_problem(record: SetRecord, rows: pa.Table) -> str | None:
    num_labels = record.target.num_logits if record.target.has_labels else 0
    label = rows.column("label")
    if record.target.has_label_lists:
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
    second = rows.column("ids2").combine_chunks()
    if not record.is_pair and second.null_count != len(second):
        return "ids2 is set although there is no second sentence"
    for name in ("ids1", "ids2") if record.is_pair else ("ids1",):
        problem = ids_problem(record, name, rows.column(name).combine_chunks())
        if problem:
            return problem
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


def text_hash(tokenizer_sha256: str, sentence1: str, sentence2: str | None) -> bytes:
    """Key of an input's text under a tokenizer, see `hash_of_texts`."""
    return hash_of_texts(tokenizer_sha256, *([sentence1] if sentence2 is None else [sentence1, sentence2]))


def text_hashes(rows: pa.Table, tokenizer_sha256: str) -> list[bytes]:
    """The text hash of each row."""
    first, second = sentences(rows)
    seconds: Sequence[str | None] = second or [None] * len(first)
    return [text_hash(tokenizer_sha256, a, b) for a, b in zip(first, seconds, strict=True)]


def shard_table(
    record: SetRecord,
    shard: Shard,
    rows: pa.Table,
    hashes: Sequence[bytes],
    inputs: Sequence[Tokenized],
    logits_NC: Floats,
) -> pa.Table:
    """The table of a shard: rows, their tokens and their logits, float32 in the task's label order."""
    schema = record.arrow_schema()
    columns = {
        "split": pa.repeat(pa.scalar(shard.split), rows.num_rows),
        "source_row": rows.column("source_row"),
        "variant": rows.column("variant"),
        "origin": rows.column("origin"),
        "sentence1": rows.column("sentence1"),
        "sentence2": rows.column("sentence2"),
        "ids1": pa.array([row.ids1 for row in inputs], schema.field("ids1").type),
        "ids2": pa.array([row.ids2 if record.is_pair else None for row in inputs], schema.field("ids2").type),
        "text_hash": pa.array(hashes, schema.field("text_hash").type),
        "label": rows.column("label"),
        "score": rows.column("score"),
        "logits": pa.FixedSizeListArray.from_arrays(pa.array(logits_NC.ravel()), logits_NC.shape[1]),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)
