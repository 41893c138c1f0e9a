"""A set of tokens that is small enough to check by hand: four words, three shards, nine masked positions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, models

from pipeline.arrays import Ragged
from pipeline.files import sha256
from pipeline.parquet import read_groups
from pipeline.sets.codec_text import CodecName
from pipeline.sets.codecs import AnyCodec, Decoder, Predictions
from pipeline.sets.codecs.codec import write_decoder
from pipeline.sets.codecs.distributions import DenseCodec, HiddenCodec, SampledCodec, TopKCodec
from pipeline.sets.files import read_statistics
from pipeline.sets.kinds.masked_words import MaskedRows, MaskedWordSet, draws, encode, no_statistics, tokens_table
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import (
    CorpusRecord,
    MaskingRecord,
    Shard,
    SplitRecord,
    TeacherRecord,
    TokenizerRecord,
    fingerprint,
)
from pipeline.sets.signals import Mlm, Signals
from pipeline.sets.write import complete_set, finish_set, start_set, write_shard
from pipeline.text.tokenizer import tokenizer_sha256, vocabulary_size

Row = tuple[int, int, int, list[int], list[int], list[int]]  # document, piece, copy, ids, positions, targets

RED, GREEN, BLUE, MASK = range(4)
WORDS = ("red", "green", "blue", "[MASK]")
CODECS_BY_NAME: dict[CodecName, AnyCodec] = {
    "dense": DenseCodec(vocabulary_size=4),
    "topk": TopKCodec(vocabulary_size=4, top_k=2),
    "sampled": SampledCodec(vocabulary_size=4, num_samples=8, temperature=1),
    "hidden": HiddenCodec(vocabulary_size=4, hidden_size=2),
}
DECODER = Decoder(torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]]), torch.tensor([0, 0.25, 0.5, -1]))
SHARDS: dict[tuple[str, int], list[Row]] = {
    ("train", 0): [
        (0, 0, 0, [MASK, GREEN, BLUE], [0], [RED]),
        (0, 0, 1, [RED, MASK, MASK], [1, 2], [GREEN, BLUE]),
        (1, 0, 0, [GREEN, MASK], [1], [RED]),
        (1, 1, 0, [MASK, RED], [0], [BLUE]),
    ],
    ("train", 1): [(2, 0, 0, [BLUE, MASK], [1], [GREEN]), (3, 0, 0, [MASK, MASK, RED], [0, 1], [GREEN, BLUE])],
    ("validation", 0): [(3, 1, 0, [MASK, BLUE, BLUE], [0], [RED])],
}


def word_tokenizer(words: Mapping[str, int]) -> str:
    """The text of a ``tokenizer.json`` with these ids."""
    return str(Tokenizer(models.WordLevel(dict(words), unk_token=next(iter(words)))).to_str())


def masked_rows(rows: list[Row]) -> MaskedRows:
    """Rows in arrays."""
    numbers = np.array([row[:3] for row in rows], dtype=np.int64).reshape(len(rows), 3).T
    return MaskedRows(*numbers, *(Ragged.of([row[k] for row in rows]) for k in (3, 4, 5)))  # type: ignore[misc]


def hidden_of(rows: MaskedRows) -> torch.Tensor:
    """What the teacher's decoder gets: small whole numbers, which float16 holds exactly."""
    return torch.from_numpy(np.stack([1 - rows.targets.flat, 2 * rows.positions.flat], axis=1)).float()


def predictions_of(rows: MaskedRows) -> Predictions:
    """The teacher's predictions for rows."""
    hidden_PH = hidden_of(rows)
    return Predictions(DECODER(hidden_PH), hidden_PH, torch.from_numpy(draws(rows, seed=1)))


def record_of(codec: AnyCodec, tokenizer_json: str) -> SetRecord:
    """The record before the first shard."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    record = SplitRecord(rows=4, expected_rows=None, rows_sha256="0" * 64)
    shards = [("train", 0, 2, 0, 2), ("train", 1, 2, 2, 4), ("validation", 0, 1, 0, 4)]
    names = ("split", "index", "count", "start", "stop")
    settings: dict[str, str | int | float | bool] = {"signal": "mlm", "codec": codec.model_dump_json()}
    return SetRecord(
        name="colours",
        kind="masked_words",
        signals=Signals(mlm=Mlm(codec=codec)),
        state="staged",
        created="2026-01-01T00:00:00+00:00",
        command="distill teacher-dump --corpus colours",
        teacher=TeacherRecord(name="painter", revision=None, weights_sha256="1" * 64, num_parameters=12, labels=()),
        tokenizer=TokenizerRecord(
            sha256=tokenizer_sha256(tokenizer_json), vocabulary_size=vocabulary_size(tokenizer), pad_id=MASK
        ),
        max_seq_length=5,
        precision="fp32",
        source="colours.txt",
        splits={"train": record, "validation": record},
        settings=settings,
        fingerprint=fingerprint(settings),
        shards=tuple(Shard(folder="masked_words", **dict(zip(names, shard, strict=True))) for shard in shards),
        versions={"distill-offline": "0"},
        corpus=CorpusRecord(
            name="colours",
            version=1,
            language="en",
            licence="CC0-1.0",
            packing="sentences",
            min_seq_length=2,
            validation_every=4,
        ),
        masking=MaskingRecord(kind="uniform", probability=0.15, num_copies=2, seed=1, mask_id=MASK),
    )


def write_set(root: Path, codec: AnyCodec, words: Mapping[str, int] | None = None) -> MaskedWordSet:
    """Writes the set of `SHARDS` in a codec, in row groups of at most three rows."""
    tokenizer_json = word_tokenizer(words or {word: i for i, word in enumerate(WORDS)})
    record = start_set(root, record_of(codec, tokenizer_json), tokenizer_json)
    if codec.needs_decoder:
        write_decoder(root, DECODER)
    for shard in record.shards:
        rows, statistics, groups = SHARDS[shard.split, shard.index], no_statistics(), []
        for start in range(0, len(rows), 3):
            part = masked_rows(rows[start : start + 3])
            said = encode(codec, predictions_of(part), torch.from_numpy(part.targets.flat), statistics)
            groups.append(tokens_table(codec, shard.split, part, said))
        write_shard(root, record, shard, groups, statistics)
    complete = complete_set(root, record)
    return MaskedWordSet(root, finish_set(root, complete, MaskedWordSet(root, complete).scores()))


def recorded(token_set: MaskedWordSet, number: int = 0, **changes: Any) -> SetRecord:
    """The record after someone also wrote a changed shard's size and hash into ``distill.json``."""
    shards = list(token_set.record.shards)
    path = token_set.root / shards[number].path
    shards[number] = shards[number].model_copy(update={"bytes": path.stat().st_size, "sha256": sha256(path), **changes})
    return token_set.record.model_copy(update={"shards": tuple(shards)})


def rewrite(token_set: MaskedWordSet, change: Callable[[list[pa.Table]], list[pa.Table]], number: int = 0) -> SetRecord:
    """Changes the row groups of a shard, with the right footer and an honest record of its bytes and rows."""
    record = token_set.record
    path = token_set.root / record.shards[number].path
    groups, statistics = change(list(read_groups(path))), read_statistics(path)
    write_shard(token_set.root, record, record.shards[number], groups, statistics)
    return recorded(token_set, number, rows=sum(group.num_rows for group in groups))


def with_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """The table with other values in a column."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
