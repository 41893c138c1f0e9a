"""Sets without text: logits under the hash of their text, for receivers who have the text themselves.

Token ids are left out with the text, as the tokenizer turns them back into it, and so is the sample of augmented rows.
Token vectors stay, as the vocabulary is no secret, but not how often the rows use each token. What layers say of tokens
tells which they are, and is left out.
A hash confirms a guess: who can guess a text can see that it is in the set.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.sets.record import TOKENIZER_FILE, SetRecord, staged
from pipeline.sets.token_vectors import take_over_token_vectors
from pipeline.sets.verify import require_shards
from pipeline.sets.writer import complete_set, finish_set, start_set, write_shard
from pipeline.text.tokenizer import read_tokenizer_json

TEXT_SETTING = "text"  # marks the fingerprint of a set without text


@contextmanager
def without_text(root: Path, record: SetRecord) -> Iterator[tuple[Path, SetRecord]]:
    """A copy of a set without its texts, in a temporary folder that goes with the block.

    Raises:
        ConfigError: if the set cannot do without.
        IntegrityError: if a shard is not what the record says.
    """
    if not record.row_kind.may_lack_text:
        raise ConfigError(f"{root}: holds {record.contents}; its sequences are its text, so nothing would be left")
    if not record.has_text:
        raise ConfigError(f"{root}: has no text already; push it without --without-text")
    require_shards(root, record, record.shards)  # the copy's are hashed anew, whatever is in them
    with tempfile.TemporaryDirectory(prefix="distill-") as folder:
        copy = Path(folder) / record.name
        tokenizer = read_tokenizer_json(root / TOKENIZER_FILE, record.tokenizer.sha256)
        blind = start_set(copy, _staged(record), tokenizer)
        for old, new in zip(record.shards, blind.shards, strict=True):
            names = blind.arrow_schema().names
            table = pq.read_table(root / old.path, columns=names, partitioning=None).replace_schema_metadata(None)
            write_shard(copy, blind, new, [table])
        finished = finish_set(copy, complete_set(copy, blind), record.scores)
        yield copy, take_over_token_vectors(root, record, copy, finished)


def _staged(record: SetRecord) -> SetRecord:
    variants = record.augmentation
    return staged(
        record.settings | {TEXT_SETTING: "left out"},
        record.command,
        base=record,
        created=record.created,
        has_text=False,
        augmentation=variants.model_copy(update={"sample": ()}) if variants else None,
        shards=tuple(shard.unmeasured().model_copy(update={"version": None}) for shard in record.shards),
        versions_before=(),
    )
