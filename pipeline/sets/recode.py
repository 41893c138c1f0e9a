"""``distill recode``: a set of tokens in another codec, from one that has kept everything; no teacher is needed.

Shapes: P positions, V vocabulary.
"""

from collections.abc import Iterator

import pyarrow as pa
import torch

from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder, require_space
from pipeline.sets.codecs import CODECS, AnyCodec, BeyondHalfError, Decoder, codec_for
from pipeline.sets.config import RecodeConfig
from pipeline.sets.kinds.masked_words import (
    MaskedWordSet,
    draws,
    encode,
    no_statistics,
    rows_per_group,
    split_table,
    tokens_table,
)
from pipeline.sets.reader import find_set
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import MAX_COUNT, Shard
from pipeline.sets.shard_file import Statistics
from pipeline.sets.signals import Mlm, Signals
from pipeline.sets.writer import complete_and_verify, shards_to_write, start_set, write_shard

POSITIONS_AT_ONCE = 512


def recode(config: RecodeConfig, command: str) -> SetRecord:
    """Writes the set that ``config`` describes, or goes on with it.

    Raises:
        ConfigError: if the set has not kept everything.
        DataError: if a number of it is too large for the codec.
        FingerprintMismatchError: if there is another set of the new name.
    """
    source = MaskedWordSet.open(find_set(config.set, config.store), config.allow_unverified)
    require_everything(source)
    codec = codec_for(config, source.record.codec.vocabulary_size, None)
    root = config.store / config.name
    positions = min(MAX_COUNT, sum(scores.get("positions", 0) for scores in source.record.scores.values()))
    make_folder(config.store)
    require_space(config.store, int(positions * codec.num_bytes()))
    started = start_set(root, _staged(config, source, codec, command), source.tokenizer_json())
    record, unfinished = shards_to_write(root, started)
    todo = {shard.path for shard in unfinished}
    decoder = source.decoder()
    with console.progress(len(record.shards), "recoding") as steps:
        for shard, new in zip(source.record.shards, record.shards, strict=True):
            if new.path in todo:
                statistics = no_statistics()
                groups = recoded_groups(source, shard, codec, decoder, statistics)
                try:
                    write_shard(root, record, new, groups, statistics)
                except BeyondHalfError as error:
                    raise DataError(f"{source.root / shard.path}, codec {codec}: {error}") from error
            steps.advance()
    return complete_and_verify(root, record, lambda complete: MaskedWordSet(root, complete).scores())


def recoded_groups(
    source: MaskedWordSet, shard: Shard, codec: AnyCodec, decoder: Decoder | None, statistics: Statistics
) -> Iterator[pa.Table]:
    """The row groups of a shard in another codec."""
    for table in source.read_shard(shard):
        for start in range(0, table.num_rows, rows_per_group(codec)):
            rows, columns = split_table(table.slice(start, rows_per_group(codec)))
            random_P = torch.from_numpy(draws(rows, source.record.mask_seed))
            target_P = torch.from_numpy(rows.targets.flat)
            pieces = []
            for low in range(0, len(target_P), POSITIONS_AT_ONCE):
                part = slice(low, min(low + POSITIONS_AT_ONCE, len(target_P)))
                stored = {name: column[part.start : part.stop] for name, column in columns.items()}
                predictions = source.record.codec.predictions(stored, decoder, random_P[part])
                pieces.append(encode(codec, predictions, target_P[part], statistics))
            whole = {name: pa.concat_arrays([piece[name] for piece in pieces]) for name in pieces[0]}
            yield tokens_table(codec, shard.split, rows, whole)


def require_everything(source: MaskedWordSet) -> None:
    """Raises ConfigError unless the codec of a set has kept what others can be made of."""
    if not source.record.codec.is_lossless:
        keeping = " and ".join(name for name, codec in reversed(CODECS.items()) if codec.is_lossless)
        raise ConfigError(
            f"{source.root}: codec {str(source.record.codec)!r} has not kept everything, only {keeping} have"
        )


def _staged(config: RecodeConfig, source: MaskedWordSet, codec: AnyCodec, command: str) -> SetRecord:
    record = source.record
    settings = record.settings | {"codec": str(codec), "recoded_from": record.fingerprint}
    note = f"recoded from a set with codec {record.codec}, made by: {record.command}"
    return staged(
        settings,
        command,
        base=record,
        name=config.name,
        signals=Signals(mlm=Mlm(codec=codec)),
        notes=(*record.notes, note),
    )
