"""Masked words of a corpus: a row per masked copy of a sequence, with a list entry per masked position.

Shapes: R rows, P masked positions of all rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Floats64, Ints, Ragged, hashed, ragged, uniform
from pipeline.errors import ConfigError
from pipeline.sets.codecs import Codec, Decoder, Predictions
from pipeline.sets.files import Statistics
from pipeline.sets.open import GroupedSet
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.registry import masked_word_columns
from pipeline.sets.row_kind import RowKind, View, ids_problem, signals_problem
from pipeline.sql.database import words_view_name
from pipeline.sql.read_only_query import parquet

if TYPE_CHECKING:
    import torch

BYTES_PER_GROUP = 2**26
MAX_ROWS_PER_GROUP = 4096
MOST_NATS = 700  # math.exp overflows above 709
POSITIONS_PER_ROW = 5  # typical for a sentence, affects only the size of row groups

# Columns: the key, `position`, `target` (the masked token), `candidate` and its `probability`. The left join keeps rows
# of the codec `hidden`, whose candidates are null.
WORDS_VIEW = """create view "{name}" as
        with by_position as (
            select split, source_row, piece, copy, unnest(positions) as position, unnest(targets) as target_id{stored}
            from {files}
        ), by_candidate as (
            select split, source_row, piece, copy, position, target_id,
                unnest({candidates}) as candidate_id, unnest({probabilities}) as probability
            from by_position
        )
        select split, source_row, piece, copy, position, target_words.token as target, words.token as candidate,
            probability
        from by_candidate
        join {words} as target_words on target_words.id = target_id
        left join {words} as words on words.id = candidate_id
    """


@dataclass(frozen=True)
class MaskedRows:
    """Masked copies of sequences, without predictions.

    Attributes:
        source_row_R: the document that the sequence begins in.
        piece_R: the sequence's number among those that begin there.
        copy_R: the number of the copy.
        ids: the tokens, without special ones.
        positions: the masked positions, ascending.
        targets: the tokens that were masked.
    """

    source_row_R: Ints
    piece_R: Ints
    copy_R: Ints
    ids: Ragged
    positions: Ragged
    targets: Ragged

    def __len__(self) -> int:
        return len(self.source_row_R)


class MaskedWordsKind(RowKind):
    """Masked copies of the sequences of a corpus. They cannot be shared without their text."""

    name = "masked_words"
    source_rows = "documents"
    page_title = "logit set of a corpus"
    sql_templates = (WORDS_VIEW,)

    def encodings(self, record: SetRecord) -> dict[str, Any]:
        return codec_encodings(record.codec)

    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        problem = _list_problem(rows)
        if problem or not rows.num_rows:
            return problem
        return (
            ids_problem(record, "ids", rows.column("ids").combine_chunks())
            or _masking_problem(record, masked_rows(rows))
            or signals_problem(record, rows)
        )

    def views(self, root: Path, record: SetRecord) -> list[View]:
        """A second view has a row per masked position and candidate, in words."""
        candidates, probabilities = record.codec.candidates_sql()
        name = words_view_name(root.name)
        sql = WORDS_VIEW.format(
            name=name,
            stored="".join(f", unnest({column}) as {column}" for column in record.codec.fields()),
            candidates=candidates,
            probabilities=probabilities,
            words=f"(select id, token from vocabulary where tokenizer = '{record.tokenizer.sha256}')",
            files=parquet([root / shard.path for shard in record.shards]),
        )
        return [*super().views(root, record), View(name, sql, needs_vocabulary=True)]

    def summary(self, record: SetRecord) -> str:
        return f"Predictions of {record.teacher.name} for masked words: {record.num_rows:,} masked sequences."


@dataclass(frozen=True)
class MaskedWordSet(GroupedSet):
    """An opened set of masked words."""

    row_kind: ClassVar = MaskedWordsKind()
    advice: ClassVar = "a set of `distill teacher-dump --signal mlm` is needed here"

    def decoder(self) -> Decoder | None:
        """The teacher's last layer, if the codec needs it.

        Raises:
            IntegrityError: if the file is missing or was changed.
        """
        return self.record.signals.mlm.read_decoder(self.root) if self.record.signals.mlm else None

    def check_temperature(self, temperature: float) -> None:
        """Raises ConfigError if the distributions at this temperature cannot be decoded."""
        codec = self.record.codec
        if not codec.honours(temperature):
            kept = codec.stored_temperature
            raise ConfigError(
                f"--temperature {temperature:g}: codec {str(codec)!r} stores the distribution only at "
                f"temperature {kept:g}. "
                f"Use --temperature {kept:g}, or a set with codec hidden or dense."
            )

    def scores(self) -> Scores:
        """Per split, from the footers: positions, the teacher's accuracy, the stored probability and the size."""
        scores: Scores = {}
        for split, total in self.totals():
            if total["positions"]:
                scores[split] = {
                    "positions": total["positions"],
                    "masked_accuracy": total["right"] / total["positions"],
                    "perplexity": perplexity(total["nats"] / total["positions"]),
                    "kept_mass": total["kept_mass"] / total["positions"],
                    "bytes_per_position": total["bytes"] / total["positions"],
                }
        return scores


def tokens_schema(codec: Codec) -> pa.Schema:
    """The columns of a set with this codec."""
    return pa.schema([*masked_word_columns(codec.vocabulary_size), *codec.columns()])


def codec_encodings(codec: Codec) -> dict[str, Any]:
    """The encodings of the columns of a set with this codec: a dictionary for bytes, others byte by byte."""
    fields = codec.fields().items()
    small = [_leaf(name, kind) for name, kind in fields if _innermost(kind) == pa.uint8()]
    split_bytes = [_leaf(name, kind) for name, kind in fields if _innermost(kind) != pa.uint8()]
    return {
        "use_dictionary": ["split", "copy", "positions.list.element", *small],
        "use_byte_stream_split": [*split_bytes, "ids.list.element", "targets.list.element"],
        "write_statistics": ["split", "source_row", "copy"],
    }


def _leaf(name: str, kind: pa.DataType) -> str:
    """Parquet's name of a codec's column: an entry per position, which may be a list."""
    return f"{name}.list.element" + (".list.element" if pa.types.is_list(kind) else "")


def _innermost(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _list_problem(table: pa.Table) -> str | None:
    """Returns a problem for nulls at any depth, or a column without exactly one entry per masked position."""
    masked_R = pc.list_value_length(table.column("positions").combine_chunks())
    for name in table.column_names[table.column_names.index("ids") :]:
        column = table.column(name).combine_chunks()
        if name != "ids" and not pc.list_value_length(column).equals(masked_R):
            return f"{name} has a row without exactly one entry per masked position"
        while pa.types.is_list(column.type) and not column.null_count:
            column = column.flatten()
        if column.null_count:
            return f"{name} is null somewhere"
    return None


def _masking_problem(record: SetRecord, rows: MaskedRows) -> str | None:
    if not rows.positions.lengths.all():
        return "a row has no masked position"
    # reduceat returns wrong maxima for empty rows, which the check above excludes.
    if (np.maximum.reduceat(rows.positions.flat, rows.positions.offsets[:-1]) >= rows.ids.lengths).any():
        return "a masked position lies beyond its row's tokens"
    if rows.targets.flat.max() >= record.tokenizer.vocabulary_size:
        return f"targets holds an id beyond the tokenizer's vocabulary of {record.tokenizer.vocabulary_size:,}"
    return None


def tokens_table(codec: Codec, split: str, rows: MaskedRows, predictions: Mapping[str, pa.Array]) -> pa.Table:
    """Joins rows with the codec's columns of the teacher's outputs, an entry per position of all rows."""
    schema = tokens_schema(codec)
    offsets = pa.array(rows.positions.offsets, pa.int32())
    columns = {
        "split": pa.repeat(pa.scalar(split), len(rows)),
        "source_row": pa.array(rows.source_row_R),
        "piece": pa.array(rows.piece_R, pa.int32()),
        "copy": pa.array(rows.copy_R, pa.int32()),
        "ids": rows.ids.column(schema.field("ids").type.value_type),
        "positions": rows.positions.column(pa.uint16()),
        "targets": rows.targets.column(schema.field("targets").type.value_type),
        **{name: pa.ListArray.from_arrays(offsets, column) for name, column in predictions.items()},
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def split_table(table: pa.Table) -> tuple[MaskedRows, dict[str, pa.Array]]:
    """Splits a table into its rows, and the codec's columns with an entry per position."""
    codec_names = table.schema.names[table.schema.get_field_index("targets") + 1 :]
    return masked_rows(table), {name: table.column(name).combine_chunks().flatten() for name in codec_names}


def masked_rows(table: pa.Table) -> MaskedRows:
    """The rows of a table, without the codec's columns."""
    numbers = (table.column(name).to_numpy().astype(np.int64) for name in ("source_row", "piece", "copy"))
    lists = (ragged(table.column(name)) for name in ("ids", "positions", "targets"))
    return MaskedRows(*numbers, *lists)


def rows_per_group(codec: Codec) -> int:
    """Returns how many rows are encoded, written and later read together, which bounds the memory."""
    bytes_per_row = POSITIONS_PER_ROW * codec.num_bytes()
    # At least 16 rows: with the dense codec a row takes some 200 kB, and tiny groups compress badly.
    return int(min(MAX_ROWS_PER_GROUP, max(16, BYTES_PER_GROUP // bytes_per_row)))


# Distinguishes these random numbers from those of masking, which have the same keys.
DRAW = 3


def draws(rows: MaskedRows, seed: int) -> Floats64:
    """Returns a random number in (0, 1) for each masked position [P]: a function of seed, row key and position."""
    row_P = np.repeat(np.arange(len(rows)), rows.positions.lengths)
    key = (rows.source_row_R[row_P], rows.piece_R[row_P], rows.copy_R[row_P], rows.positions.flat)
    return uniform(hashed(seed, DRAW, *key))


def encode(
    codec: Codec, predictions: Predictions, target_P: "torch.Tensor", statistics: Statistics
) -> dict[str, pa.Array]:
    """Returns the codec's columns for some positions, and adds to the statistics.

    Args:
        codec: how to store the predictions.
        predictions: the teacher's predictions.
        target_P: int64, the tokens that were masked.
        statistics: receives positions, right predictions, nats of the targets, and the stored probability.

    Raises:
        BeyondHalfError: if a number that is kept as float16 is too large for it.
    """
    import torch

    # Log-probabilities in bf16 would have two decimal digits.
    with torch.autocast(target_P.device.type, enabled=False):
        columns, mass_P = codec.encode(predictions)
    nats_P = predictions.log_z_P - predictions.logits_PV.gather(1, target_P[:, None]).squeeze(1)
    sums = {
        "positions": len(target_P),
        "right": int((predictions.logits_PV.argmax(dim=1) == target_P).sum()),
        # Sums in float64 keep the small terms that a float32 sum would drop.
        "nats": float(nats_P.double().sum()),
        "kept_mass": float(mass_P.double().sum()),
    }
    for name, value in sums.items():
        statistics[name] += value
    return columns


def no_statistics() -> Statistics:
    """The sums of `encode` before the first position, 0 each."""
    return dict.fromkeys(("positions", "right", "nats", "kept_mass"), 0.0)


def perplexity(nats: float) -> float:
    """Returns the perplexity of a mean in nats, which is limited to `MOST_NATS`."""
    return math.exp(min(nats, MOST_NATS))
