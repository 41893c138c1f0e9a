"""``distill recode``: a set of tokens in another codec, from one that has kept everything; no teacher is needed.

Shapes: P positions, V vocabulary.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import torch

from pipeline import console
from pipeline.errors import ConfigError
from pipeline.files import make_folder, require_space
from pipeline.logit_set.codecs import CODECS, Decoder, Predictions
from pipeline.logit_set.codecs.common import Columns
from pipeline.logit_set.codecs.dense import stored as stored_logits
from pipeline.logit_set.codecs.hidden import stored as stored_hidden
from pipeline.logit_set.config import RecodeConfig
from pipeline.logit_set.parts import MAX_COUNT, Codec
from pipeline.logit_set.reader import find_set
from pipeline.logit_set.record import TokensRecord, TokensShard, fingerprint
from pipeline.logit_set.token_reader import TokenSet, open_tokens
from pipeline.logit_set.tokens import (
    Statistics,
    draws,
    encode,
    no_statistics,
    rows_per_group,
    split_table,
    tokens_table,
)
from pipeline.logit_set.writer import complete_set, finish_set, start_set, unfinished_shards, write_tokens_shard

POSITIONS_AT_ONCE = 512


def recode(config: RecodeConfig, command: str) -> TokensRecord:
    """Writes the set that ``config`` describes, or goes on with it.

    Raises:
        ConfigError: if the set has not kept everything.
        FingerprintMismatchError: if there is another set of the new name.
    """
    source = open_tokens(find_set(config.logits, config.store), config.allow_unverified)
    kept = source.record.codec
    if kept.name not in ("hidden", "dense"):
        raise ConfigError(f"{source.root}: codec {str(kept)!r} has not kept everything, only hidden and dense have")
    if config.codec == "hidden":
        raise ConfigError("--codec hidden: it is for `distill teacher-dump`, which has the teacher's hidden states")
    codec = config.codec_for(kept.vocabulary_size, None)
    root = config.store / config.name
    positions = min(MAX_COUNT, sum(scores.get("positions", 0) for scores in source.record.scores.values()))
    make_folder(config.store)
    require_space(config.store, int(positions * CODECS[codec.name].num_bytes(codec)))
    record = start_set(root, _staged(config, source, codec, command), source.tokenizer_json())
    todo = {shard.path for shard in unfinished_shards(root, record)}
    decoder = source.decoder()
    with console.progress(len(record.shards), "recoding") as steps:
        for shard, new in zip(source.record.shards, record.shards, strict=True):
            if new.path in todo:
                statistics = no_statistics()
                groups = recoded_groups(source, shard, codec, decoder, statistics)
                write_tokens_shard(root, record, new, groups, statistics)
            steps.advance()
    if record.state == "verified" and not todo:
        return record
    complete = complete_set(root, record)
    return finish_set(root, complete, TokenSet(root, complete).scores())


def recoded_groups(
    source: TokenSet, shard: TokensShard, codec: Codec, decoder: Decoder | None, statistics: Statistics
) -> Iterator[pa.Table]:
    """The row groups of a shard in another codec."""
    for table in source.read_shard(shard):
        for start in range(0, table.num_rows, rows_per_group(codec)):
            rows, columns = split_table(table.slice(start, rows_per_group(codec)))
            random_P = torch.from_numpy(draws(rows, source.record.masking.seed))
            target_P = torch.from_numpy(rows.targets.flat)
            pieces = []
            for low in range(0, len(target_P), POSITIONS_AT_ONCE):
                part = slice(low, min(low + POSITIONS_AT_ONCE, len(target_P)))
                kept = {name: column[part.start : part.stop] for name, column in columns.items()}
                said = predictions(kept, decoder, random_P[part])
                pieces.append(encode(codec, said, target_P[part], statistics))
            whole = {name: pa.concat_arrays([piece[name] for piece in pieces]) for name in pieces[0]}
            yield tokens_table(codec, shard.split, rows, whole)


def predictions(columns: Columns, decoder: Decoder | None, random_P: torch.Tensor) -> Predictions:
    """What the teacher said, from columns that have kept it all."""
    if decoder is None:
        logits_PV = stored_logits(columns)
        return Predictions(logits_PV, logits_PV[:, :0], random_P)
    hidden_PH = stored_hidden(columns)
    return Predictions(decoder(hidden_PH), hidden_PH, random_P)


def _staged(config: RecodeConfig, source: TokenSet, codec: Codec, command: str) -> TokensRecord:
    record = source.record
    settings = record.settings | {"codec": str(codec), "recoded_from": record.fingerprint}
    changes = {
        "name": config.name,
        "state": "staged",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "codec": codec,
        "decoder_sha256": None,
        "settings": settings,
        "fingerprint": fingerprint(settings),
        "shards": tuple(shard.unmeasured() for shard in record.shards),
        "scores": {},
        "notes": (*record.notes, f"recoded from a set with codec {record.codec}, made by: {record.command}"),
    }
    return record.model_copy(update=changes)
