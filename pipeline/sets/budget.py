"""``distill budget``: measures size and loss of each codec on a sample of a set with a lossless codec.

Shapes: P positions, V vocabulary.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline import console
from pipeline.arrays import Ints
from pipeline.errors import ConfigError
from pipeline.sets.codecs import CODECS, BeyondHalfError, Codec, Decoder, Dense, Distribution, Predictions
from pipeline.sets.files import write_rows
from pipeline.sets.kinds.masked_words import (
    MaskedWordSet,
    codec_encodings,
    draws,
    rows_per_group,
    split_table,
    tokens_schema,
    tokens_table,
)
from pipeline.sets.recode import require_everything
from pipeline.tasks.calibration_error import calibration_error

TEMPERATURES = (1.0, 2.0, 4.0)
POSITIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Line:
    """The size and the loss of a codec, measured on a sample.

    Attributes:
        codec: its name and settings.
        bytes_per_position: size of the rows in the files, including all columns.
        kl: mean KL divergence of the stored from the full distribution, in nats. For top-k, of the normalized stored
            part.
        kept_mass: the stored share of the probability, by temperature. None where the codec does not support it.
        calibration_error: error of the stored probability of the most likely token, in ten bins, against the masked
            tokens.
        unbiased: whether the expectation of the stored distribution is the full distribution.
        corpus_bytes: size for all positions.
    """

    codec: str
    bytes_per_position: float
    kl: float
    kept_mass: dict[str, float | None]
    calibration_error: float
    unbiased: bool
    corpus_bytes: float


@dataclass
class _Sums:
    """Sums over the positions of a sample."""

    kl: float = 0.0
    mass: tuple[float, ...] = (0.0,) * len(TEMPERATURES)
    confidence: tuple[Any, ...] = ()
    right: tuple[Any, ...] = ()


def budget(control: MaskedWordSet, max_positions: int, corpus_positions: float) -> list[Line]:
    """Tries codecs on the first positions of a set.

    Args:
        control: a set with codec hidden or dense.
        max_positions: the size of the sample.
        corpus_positions: the number of all positions.

    Raises:
        ConfigError: if the codec of the set is not lossless.
    """
    require_everything(control)
    table, decoder = _sample(control, max_positions), control.decoder()
    source = control.record.codec
    codecs = [codec for kind in CODECS.values() for codec in kind.worth_trying(source)]
    lines = []
    with console.progress(len(codecs), "codecs") as steps:
        for codec in codecs:
            try:
                lines.append(_line(codec, source, table, decoder, control.record.mask_seed, corpus_positions))
            except BeyondHalfError as error:
                console.warn(f"codec {codec} is left out: {error}")
            steps.advance()
    return lines


def _sample(control: MaskedWordSet, max_positions: int) -> pa.Table:
    tables, positions = [], 0
    for shard in control.shards("train"):
        for table in control.read_shard(shard):
            lengths = np.cumsum([len(row) for row in table.column("positions").to_pylist()]) + positions
            tables.append(table.slice(0, int(np.searchsorted(lengths, max_positions)) + 1))
            positions = int(lengths[-1])
            if positions >= max_positions:
                return pa.concat_tables(tables)
    if not tables:
        raise ConfigError(f"{control.root}: its train split has no rows")
    return pa.concat_tables(tables)


def _line(
    codec: Codec, source: Codec, table: pa.Table, decoder: Decoder | None, seed: int, corpus_positions: float
) -> Line:
    rows, columns = split_table(table)
    random_P, target_P = torch.from_numpy(draws(rows, seed)), rows.targets.flat
    pieces: list[dict[str, pa.Array]] = []
    sums = _Sums()
    for low in range(0, len(target_P), POSITIONS_AT_ONCE):
        part = slice(low, min(low + POSITIONS_AT_ONCE, len(target_P)))
        stored = {name: column[part.start : part.stop] for name, column in columns.items()}
        predictions = source.predictions(stored, decoder, random_P[part])
        encoded, _ = codec.encode(predictions)
        _add(sums, codec.decode(encoded, 1.0, decoder), predictions, target_P[part])
        pieces.append(encoded)
    whole = {name: pa.concat_arrays([piece[name] for piece in pieces]) for name in pieces[0]}
    num_bytes = _bytes_per_position(codec, tokens_table(codec, "train", rows, whole))
    mass = {f"{t:g}": total / len(target_P) for t, total in zip(TEMPERATURES, sums.mass, strict=True)}
    return Line(
        codec=str(codec),
        bytes_per_position=num_bytes,
        kl=sums.kl / len(target_P),
        kept_mass={t: m if codec.honours(float(t)) else None for t, m in mass.items()},
        calibration_error=calibration_error(np.concatenate(sums.confidence), np.concatenate(sums.right)),
        unbiased=codec.is_unbiased,
        corpus_bytes=num_bytes * corpus_positions,
    )


def _add(sums: _Sums, stored: Distribution, predictions: Predictions, target_P: Ints) -> None:
    log_p_PV = predictions.logits_PV.log_softmax(dim=1)
    if isinstance(stored, Dense):
        q_PV = stored.probability_PV
        kl_P = torch.special.xlogy(q_PV, q_PV).sum(dim=1) - (q_PV * log_p_PV).sum(dim=1)
        confidence_P, guess_P = q_PV.max(dim=1)
        kept_PV = torch.ones_like(log_p_PV, dtype=torch.bool)
    else:
        row_E, token_E = stored.position_E, stored.token_E
        sparse_PV = torch.zeros_like(log_p_PV).index_put((row_E, token_E), stored.probability_E)
        # KL divergence needs a distribution, so the kept tokens are normalized. The lost mass is reported as kept_mass.
        share_PV = sparse_PV / sparse_PV.sum(dim=1, keepdim=True)
        kl_P = torch.special.xlogy(share_PV, share_PV).sum(dim=1) - (share_PV * log_p_PV).sum(dim=1)
        confidence_P, guess_P = sparse_PV.max(dim=1)
        # A sampled token may have a tiny probability, so kept tokens are marked instead of compared with 0.
        kept_PV = torch.zeros_like(log_p_PV, dtype=torch.bool).index_put((row_E, token_E), torch.tensor(True))
    sums.kl += float(kl_P.sum())
    masses = [float(((predictions.logits_PV / t).softmax(dim=1) * kept_PV).sum()) for t in TEMPERATURES]
    sums.mass = tuple(a + b for a, b in zip(sums.mass, masses, strict=True))
    sums.confidence = (*sums.confidence, confidence_P.numpy())
    sums.right = (*sums.right, guess_P.numpy() == target_P)


def _bytes_per_position(codec: Codec, table: pa.Table) -> float:
    """Returns the bytes that positions add to a file. Header and footer are negligible in a set's large files."""
    first = table.slice(0, 1)
    if table.num_rows == 1:
        return _file_bytes(codec, first) / _num_positions(first)
    added = _file_bytes(codec, table) - _file_bytes(codec, first)
    return added / (_num_positions(table) - _num_positions(first))


def _num_positions(table: pa.Table) -> int:
    return sum(map(len, table.column("positions").to_pylist()))


def _file_bytes(codec: Codec, table: pa.Table) -> int:
    # Row groups of the real size, because compression depends on how many rows share a group.
    size = rows_per_group(codec)
    groups = (table.slice(start, size) for start in range(0, table.num_rows, size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.parquet"
        write_rows(path, tokens_schema(codec), {}, codec_encodings(codec), groups, {})
        return path.stat().st_size
