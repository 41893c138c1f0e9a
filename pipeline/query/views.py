"""The views on the rows of one set, and on those of all sets of examples.

Each split is a branch of its own, so that a condition on the split, or on the set, takes the other branches out of the
plan: their rows are never read.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.arrays import id_type
from pipeline.sets.record import SetRecord
from pipeline.sql.database import view_name
from pipeline.sql.gate import parquet, quoted

SPLIT_ROWS = "select {split} as split, {columns} from {files}"
SET_ROWS = """select {name} as "set", * replace (ids1::uinteger[] as ids1, ids2::uinteger[] as ids2,
    {label} as label, logits::float[] as logits) from "{view}" """


def set_view_sql(view: str, root: Path, record: SetRecord) -> str:
    """The statement that creates the view on a set's files."""
    columns = ", ".join(view_columns(record))
    branches = []
    for split in dict.fromkeys(shard.split for shard in record.shards):
        files = parquet([root / shard.path for shard in record.shards_of(split)])
        branches.append(SPLIT_ROWS.format(split=quoted(split), columns=columns, files=files))
    return f'create view "{view}" as {" union all ".join(branches)}'


def all_examples_sql(view: str, sets: Sequence[tuple[str, SetRecord]]) -> str:
    """The statement that creates the view on all sets of examples, given the name and the record of each.

    Sets differ in the width of their ids and in the number of their logits; here all have the same types. Of
    multi-label sets, whose labels are lists, the label is null here.
    """
    labels = ["null::int" if record.target.kind == "labels" else "label" for _, record in sets]
    branches = [
        SET_ROWS.format(name=quoted(name), view=view_name(name), label=label)
        for (name, _), label in zip(sets, labels, strict=True)
    ]
    return f'create view "{view}" as {" union all ".join(branches)}'


def columns_with_text(record: SetRecord, columns: str = "*") -> str:
    """What to select of a set's files, in SQL, so that there are texts; of a set without text they are null."""
    return columns if record.has_text else f"{columns}, null::varchar as sentence1, null::varchar as sentence2"


def view_columns(record: SetRecord) -> list[str]:
    """The columns of a set's view but for the split, in SQL; of a set without text null where that would be."""
    stored = record.arrow_schema()
    ids = "usmallint[]" if id_type(record.tokenizer.vocabulary_size) == pa.uint16() else "uinteger[]"
    of_text = {"sentence1": "varchar", "sentence2": "varchar", "ids1": ids, "ids2": ids}
    names = (column.name for column in record.model_copy(update={"has_text": True}).arrow_schema())
    return [name if name in stored.names else f"null::{of_text[name]} as {name}" for name in names if name != "split"]


def word_view_sql(name: str, root: Path, record: SetRecord) -> str:
    """The statement that creates the view ``name``: a row for each word, with the logits of its first token.

    Columns: the key, ``word`` (its number), ``text``, ``label``, ``logits``; null of a word without tokens.
    """
    files = parquet([root / shard.path for shard in record.shards])
    return f"""create view "{name}" as
        select split, source_row, word, words[word + 1] as text, label[word + 1] as label,
            logits[list_position(word_ids, word)] as logits
        from (select *, unnest(range(len(words)))::int as word from {files})
    """


def token_view_sql(name: str, record: SetRecord, paths: list[Path]) -> str:
    """The statement that creates the view ``name``; it needs the table ``vocabulary``.

    Columns: the key, ``position``, ``target`` (what stood there), ``candidate`` and its ``probability``.
    """
    stored = "".join(f", unnest({column}) as {column}" for column in record.codec.fields())
    candidates, probabilities = record.codec.candidates_sql()
    words = f"(select id, token from vocabulary where tokenizer = '{record.tokenizer.sha256}')"
    return f"""create view "{name}" as
        with by_position as (
            select split, source_row, piece, copy, unnest(positions) as position, unnest(targets) as target_id{stored}
            from {parquet(paths)}
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
