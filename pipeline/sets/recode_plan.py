"""``distill recode --plan``: measures the size and the loss of each codec on a sample of a set.

Shapes: P positions, V vocabulary, T tokens, H hidden size, R rows, A heads, L tokens of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy.special import log_softmax

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError
from pipeline.sets.codecs import BeyondHalfError, Codec, Decoder, Dense, Distribution, codec_for
from pipeline.sets.codecs.vectors import ROUNDING, fit_basis, vector_codec
from pipeline.sets.files import write_rows
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import (
    MaskedWordSet,
    codec_encodings,
    rows_per_group,
    tokens_schema,
)
from pipeline.sets.layers import group_writer
from pipeline.sets.open import find_set
from pipeline.sets.recode import (
    KEPT_WHOLE,
    encoded_table,
    require_everything,
    spread_outputs,
    stored_predictions,
    training_files,
)
from pipeline.sets.record import read_set_record
from pipeline.sets.set_settings import RecodeSettings
from pipeline.sets.signals import LayerSignal, States
from pipeline.sets.verify import require_signal_files
from pipeline.tasks.calibration_error import calibration_error

TEMPERATURES = (1.0, 2.0, 4.0)
POSITIONS_AT_ONCE = 256
DIMS = (16, 32, 64, 128, 256)  # of pca, up to half of the hidden size
# Every fifth row is measured. Bases are fitted to the others, so that the measured loss is unbiased.
EVERY = 5
TRIED = ("dense", *(f"topk-{k}" for k in (12, 50, 100)), *(f"sampled-{n}" for n in (8, 16, 32, 50, 100)))
MOST_POSITIONS, MOST_ROWS = 2000, 512  # of a sample


def compared_codecs(settings: RecodeSettings) -> "list[Line] | list[LayerLine]":
    """Returns the size and the loss of each codec that a set can be recoded to.

    Raises:
        ConfigError: if the set stores nothing that other codecs can be made from.
    """
    path = find_set(settings.set, settings.store)
    if read_set_record(path).kind == ExampleSet.row_kind.name:
        logit_set = ExampleSet.open(path, settings.allow_unverified)
        return compared_layer_codecs(logit_set, settings.sample or MOST_ROWS)
    control = MaskedWordSet.open(path, settings.allow_unverified)
    return compared_word_codecs(control, settings.sample or MOST_POSITIONS)


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
        set_bytes: size for all positions of the set.
    """

    codec: str
    bytes_per_position: float
    kl: float
    kept_mass: dict[str, float | None]
    calibration_error: float
    unbiased: bool
    set_bytes: float


def compared_word_codecs(control: MaskedWordSet, max_positions: int) -> list[Line]:
    """Tries codecs of distributions on the first positions of a set.

    Raises:
        ConfigError: if the codec of the set is not lossless.
    """
    require_everything(control)
    table, decoder = _sample(control, max_positions), control.decoder()
    source = control.record.codec
    all_positions = sum(scores.get("positions", 0) for scores in control.record.scores.values())
    size = source.vocabulary_size
    codecs = [codec_for(text, size, None) for text in TRIED if not text.startswith("topk") or int(text[5:]) <= size]
    codecs[1:1] = [source] if source.needs_decoder else []
    lines = []
    with console.progress(len(codecs), "codecs") as steps:
        for codec in codecs:
            try:
                lines.append(_line(codec, control, table, decoder, all_positions))
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


def _line(codec: Codec, control: MaskedWordSet, table: pa.Table, decoder: Decoder | None, all_positions: float) -> Line:
    pieces, measures, targets = [], [], []
    for predictions, target_P in stored_predictions(control, table, decoder, POSITIONS_AT_ONCE):
        encoded, _ = codec.encode(predictions)
        measures.append(_measured(codec.decode(encoded, 1.0, decoder), predictions.logits_PV))
        pieces.append(encoded)
        targets.append(target_P)
    num_bytes = _bytes_per_position(codec, encoded_table(codec, "train", table, pieces))
    kl_P, mass_PT, confidence_P, guess_P = (torch.cat(each).numpy() for each in zip(*measures, strict=True))
    mass = dict(zip(TEMPERATURES, mass_PT.mean(axis=0, dtype=np.float64).tolist(), strict=True))
    return Line(
        codec=str(codec),
        bytes_per_position=num_bytes,
        kl=float(kl_P.mean(dtype=np.float64)),
        kept_mass={f"{t:g}": share if codec.honours(t) else None for t, share in mass.items()},
        calibration_error=calibration_error(confidence_P, guess_P == torch.cat(targets).numpy()),
        unbiased=codec.name != "topk",
        set_bytes=num_bytes * all_positions,
    )


def _measured(stored: Distribution, logits_PV: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns KL divergences, kept masses at `TEMPERATURES` [P, T], confidences and guesses of positions."""
    if isinstance(stored, Dense):
        q_PV, kept_PV = stored.probability_PV, torch.ones_like(logits_PV, dtype=torch.bool)
    else:
        place = (stored.position_E, stored.token_E)
        q_PV = torch.zeros_like(logits_PV).index_put(place, stored.probability_E)
        # A sampled token may have a tiny probability, so kept tokens are marked instead of compared with 0.
        kept_PV = torch.zeros_like(logits_PV, dtype=torch.bool).index_put(place, torch.tensor(True))
    # KL divergence needs a distribution, so the kept tokens are normalized. The lost mass is reported as kept_mass.
    share_PV = q_PV / q_PV.sum(dim=1, keepdim=True)
    kl_P = (torch.special.xlogy(share_PV, share_PV) - share_PV * logits_PV.log_softmax(dim=1)).sum(dim=1)
    mass_PT = torch.stack([((logits_PV / t).softmax(dim=1) * kept_PV).sum(dim=1) for t in TEMPERATURES], dim=1)
    return kl_P, mass_PT, *q_PV.max(dim=1)


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
    with NamedTemporaryFile() as file:
        write_rows(Path(file.name), tokens_schema(codec), {}, codec_encodings(codec), groups, {})
        return Path(file.name).stat().st_size


@dataclass(frozen=True)
class LayerLine:
    """The size and the loss of a codec of a layer.

    Attributes:
        signal: the signal.
        layer: the number of the layer.
        codec: the codec.
        bytes_per_row: the size in the files, including all columns.
        set_bytes: the size of all rows of the set.
        lost: for states the lost share of their variance. For attention and values the divergence of the stored softmax
            from the teacher's, in nats, as a mean over heads and tokens. None if all states are the same, such as those
            of ``[CLS]`` in layer 0.
    """

    signal: str
    layer: int
    codec: str
    bytes_per_row: float
    set_bytes: float
    lost: float | None


def compared_layer_codecs(logit_set: ExampleSet, max_rows: int) -> list[LayerLine]:
    """Tries codecs of each stored layer on evenly spread training rows.

    Raises:
        ConfigError: if no layer is stored in these codecs.
    """
    signals = [signal for signal in logit_set.record.signals.layer_signals if signal.how in KEPT_WHOLE]
    if not signals:
        raise ConfigError(
            f"{logit_set.root}: stores no layers in {' or '.join(KEPT_WHOLE)}, so it has no others to try"
        )
    require_signal_files(logit_set.root, logit_set.record)
    # One layer at a time: the outputs of all layers at once would not fit into memory.
    passes = [(signal, layer) for signal in signals for layer in signal.layers]
    lines = []
    with console.progress(len(passes), "layers") as steps:
        for signal, layer in passes:
            one = signal.model_copy(update={"layers": (layer,)})
            every = max(1, sum(file.rows or 0 for file in training_files(logit_set, signal)) // max_rows)
            length_R, outputs = spread_outputs(logit_set, one, every, {})
            num_rows = sum(file.rows or 0 for file in signal.shards)
            lines += [measured_line(tried, outputs[layer], length_R, num_rows) for tried in candidates(one)]
            steps.advance()
    return lines


def candidates(signal: LayerSignal) -> Iterator[LayerSignal]:
    """Returns a signal in all codecs of its kind."""
    if isinstance(signal, States):
        width = signal.codec.width
        pca = [f"pca-{dims}" for dims in DIMS if 2 * dims <= width]
        # What float16 has lost would not count as a loss.
        exact = ["float32"] if signal.how == "float32" else []
        codecs: list[Any] = [vector_codec(text, width) for text in (*exact, "float16", "int8", *reversed(pca))]
    else:
        codecs = ["float32", "u8"]
    for codec in codecs:
        yield signal.model_copy(update={"codec": codec, "shards": ()})


def measured_line(signal: LayerSignal, outputs: Sequence[Floats], length_R: Ints, num_rows: int) -> LayerLine:
    """Fits a basis to most rows, if one is needed, and measures the codec on the others."""
    (layer,) = signal.layers
    # Of fewer rows, all are measured.
    is_measured_R = (np.arange(len(outputs)) % EVERY == EVERY - 1) | (len(outputs) < EVERY)
    measured = [block for block, is_measured in zip(outputs, is_measured_R, strict=True) if is_measured]
    bases = {}
    if isinstance(signal, States) and signal.codec.basis_bytes:
        # Fitted on the rows that are not measured: on its own rows a basis looks better than it is.
        others = [block for block, is_measured in zip(outputs, is_measured_R, strict=True) if not is_measured]
        bases = {layer: fit_basis(np.concatenate(others or measured), signal.codec.num_stored)}
    rows = np.flatnonzero(is_measured_R)
    keys = pa.table(
        {"split": ["train"] * len(rows), "source_row": rows, "variant": pa.array([0] * len(rows), pa.int32())}
    )
    table = signal.table(keys, length_R[is_measured_R], {layer: measured}, bases)
    back = signal.decode(signal.stored_in(table, layer), length_R[is_measured_R], bases.get(layer))
    lost = _share_lost(measured, back) if isinstance(signal, States) else _divergence(measured, back)
    # An empty file's header and footer are subtracted, since they hardly count in files of a whole set.
    size = (_layer_file_bytes(signal, table) - _layer_file_bytes(signal, table.slice(0, 0))) / len(rows)
    return LayerLine(signal.name, layer, signal.how, size, size * num_rows, lost)


def _share_lost(outputs: Sequence[Floats], back: Sequence[Floats]) -> float | None:
    output_TH, back_TH = np.concatenate(outputs), np.concatenate(back)
    variance = ((output_TH - output_TH.mean(axis=0, dtype=np.float64)) ** 2).sum()
    is_constant = variance <= ROUNDING * (output_TH.astype(np.float64) ** 2).sum()
    return None if is_constant else float(((output_TH - back_TH) ** 2).sum() / variance)


def _divergence(outputs: Sequence[Floats], back: Sequence[Floats]) -> float:
    """Returns the mean over rows, heads and tokens of KL(the teacher's softmax ‖ the stored one), in nats."""
    nats = []
    for output_ALL, back_ALL in zip(outputs, back, strict=True):
        log_p, log_q = (log_softmax(block.astype(np.float64), axis=2) for block in (output_ALL, back_ALL))
        nats.append((np.exp(log_p) * (log_p - log_q)).sum(axis=2).ravel())
    return float(np.concatenate(nats).mean())


def _layer_file_bytes(signal: LayerSignal, table: pa.Table) -> int:
    with NamedTemporaryFile() as file:
        with group_writer(Path(file.name), signal, {}) as write:
            write(table)
        return Path(file.name).stat().st_size
