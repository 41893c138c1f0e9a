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
    DerivedManifest,
    ExamplesManifest,
    SetManifest,
    SharedShard,
    augmentation_of,
    fingerprint,
    has_text,
)
from pipeline.logit_set.writer import complete_set, finish_set, start_set, write_shard
from pipeline.text.tokenizer import read_tokenizer_json

TEXT_SETTING = "text"  # marks the fingerprint of a set without text


@contextmanager
def without_text(root: Path, manifest: SetManifest) -> Iterator[tuple[Path, DerivedManifest]]:
    """A copy of a set without its texts, in a temporary folder that goes with the block.

    Raises:
        ConfigError: if the set cannot do without.
    """
    if not isinstance(manifest, ExamplesManifest):
        raise ConfigError(f"{root}: holds {manifest.holds}; its sequences are its text, so nothing would be left")
    if not has_text(manifest):
        raise ConfigError(f"{root}: has no text already; push it without --without-text")
    with tempfile.TemporaryDirectory(prefix="distill-") as folder:
        copy = Path(folder) / manifest.name
        tokenizer = read_tokenizer_json(root / TOKENIZER_FILE, manifest.tokenizer.sha256)
        staged = start_set(copy, _staged(manifest), tokenizer)
        for old, new in zip(manifest.shards, staged.shards, strict=True):
            names = examples_schema(manifest.target.num_logits, manifest.tokenizer.vocabulary_size, False).names
            table = pq.read_table(root / old.path, columns=names, partitioning=None).replace_schema_metadata(None)
            write_shard(copy, staged, new, table)
        yield copy, finish_set(copy, complete_set(copy, staged), manifest.scores)


def _staged(manifest: ExamplesManifest) -> DerivedManifest:
    settings = manifest.settings | {TEXT_SETTING: "left out"}
    record = augmentation_of(manifest)
    own = {
        "format_version": 4,
        "state": "staged",
        "has_text": False,
        "settings": settings,
        "fingerprint": fingerprint(settings),
        "versions_before": (),
        "augmentation": record.model_copy(update={"sample": ()}) if record else None,
        "splits": {name: PartialSplit(**split.model_dump()) for name, split in manifest.splits.items()},
        "shards": tuple(
            SharedShard(**shard.unmeasured().model_dump() | {"version": None}) for shard in manifest.shards
        ),
        "scores": {},
    }
    return DerivedManifest(**{name: getattr(manifest, name) for name in ExamplesManifest.model_fields} | own)
