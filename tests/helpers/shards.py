"""Shards written as the kinds of rows write theirs, of tables that need not be those of a set."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from pipeline.parquet import Footer
from pipeline.sets.codecs import Codec
from pipeline.sets.files import Statistics, write_rows
from pipeline.sets.kinds.examples import example_encodings
from pipeline.sets.kinds.masked_words import codec_encodings, tokens_schema


def write_examples(path: Path, table: pa.Table, footer: Footer) -> None:
    """Writes a shard of examples with the columns of a table."""
    write_rows(path, table.schema, footer, example_encodings(table.column_names), [table])


def write_tokens(path: Path, codec: Codec, groups: Iterable[pa.Table], footer: Footer, statistics: Statistics) -> None:
    """Writes a shard of masked words with the columns of a codec."""
    write_rows(path, tokens_schema(codec), footer, codec_encodings(codec), groups, statistics)
