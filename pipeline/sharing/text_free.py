"""Sets without text: logits under the hash of their text, for receivers who have the text themselves.

Token ids are left out with the text, as the tokenizer turns them back into it, and so is the sample of augmented rows.
A hash confirms a guess: who can guess a text can see that it is in the set.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.logit_set.examples import examples_schema
from pipeline.logit_set.parts import (
    PartialSplit,
)
from pipeline.logit_set.record import (
    TOKENIZER_FILE,
    DerivedRecord,
    ExamplesRecord,
    SetRecord,
    SharedShard,
    augmentation_of,
    fingerprint,
    has_text,
)
from pipeline.logit_set.writer import complete_set, finish_set, start_set, write_shard
from pipeline.text.tokenizer import read_tokenizer_json

TEXT_SETTING = "text"  # marks the fingerprint of a set without text


@contextmanager
def without_text(root: Path, record: SetRecord) -> Iterator[tuple[Path, DerivedRecord]]:
    """A copy of a set without its texts, in a temporary folder that goes with the block.

    Raises:
        ConfigError: if the set cannot do without.
    """
    if not isinstance(record, ExamplesRecord):
        raise ConfigError(f"{root}: holds {record.holds}; its sequences are its text, so nothing would be left")
    if not has_text(record):
        raise ConfigError(f"{root}: has no text already; push it without --without-text")
    with tempfile.TemporaryDirectory(prefix="distill-") as folder:
        copy = Path(folder) / record.name
        tokenizer = read_tokenizer_json(root / TOKENIZER_FILE, record.tokenizer.sha256)
        staged = start_set(copy, _staged(record), tokenizer)
        for old, new in zip(record.shards, staged.shards, strict=True):
            names = examples_schema(record.target.num_logits, record.tokenizer.vocabulary_size, False).names
            table = pq.read_table(root / old.path, columns=names, partitioning=None).replace_schema_metadata(None)
            write_shard(copy, staged, new, table)
        yield copy, finish_set(copy, complete_set(copy, staged), record.scores)


def _staged(record: ExamplesRecord) -> DerivedRecord:
    settings = record.settings | {TEXT_SETTING: "left out"}
    augmentation = augmentation_of(record)
    own = {
        "format_version": 4,
        "state": "staged",
        "has_text": False,
        "settings": settings,
        "fingerprint": fingerprint(settings),
        "versions_before": (),
        "augmentation": augmentation.model_copy(update={"sample": ()}) if augmentation else None,
        "splits": {name: PartialSplit(**split.model_dump()) for name, split in record.splits.items()},
        "shards": tuple(SharedShard(**shard.unmeasured().model_dump() | {"version": None}) for shard in record.shards),
        "scores": {},
    }
    return DerivedRecord(**{name: getattr(record, name) for name in ExamplesRecord.model_fields} | own)
