"""Stage one on a corpus: what a masked LM predicts at masked positions, written as a set of tokens.

Shapes: R rows, P masked positions, H hidden size, V vocabulary.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipeline import console
from pipeline.devices import processes
from pipeline.errors import TeacherError
from pipeline.files import make_folder, require_space
from pipeline.sets.codecs import BeyondHalfError, Codec, Predictions, codec_for
from pipeline.sets.codecs.decoder import write_decoder
from pipeline.sets.kinds.masked_words import (
    MaskedRows,
    MaskedWordSet,
    draws,
    encode,
    no_statistics,
    rows_per_group,
    tokens_table,
)
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import Statistics
from pipeline.sets.writer import write_shard
from pipeline.stopping import stop_between
from teacher.config import DumpCorpus
from teacher.corpus.masking import Masked, MaskingPlan, mask
from teacher.corpus.sequences import Sequences
from teacher.corpus.text import Text, masking_plan, nothing_to_mask, open_text, require_known_words
from teacher.dump.cluster import Errand, ask_here_or_there
from teacher.dump.corpus_size import estimate_size
from teacher.dump.jobs import write_set
from teacher.dump.prefetch import prefetched
from teacher.dump.tokens_record import staged_record
from teacher.models.batches import LONGEST_SHOWN, run_batches, tokens_per_batch
from teacher.models.loaded import inference_mode
from teacher.models.masked_lm import MaskedLm, decoder_of, load_masked_lm, predict_masked

PROBE_DOCUMENTS = 8


def dump_mlm(config: DumpCorpus, command: str) -> SetRecord | None:
    """Writes the set of tokens that ``config`` describes, or goes on with it.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.

    Raises:
        ConfigError: for flags that do not fit.
        DataError: if the corpus has no token to mask, or the tokenizer does not know its words.
        TeacherError: if the teacher's last layer is not what it says, or it says NaN.
    """
    config.check()
    text = open_text(config, config.max_seq_length)
    name, revision = config.teacher_for(text.corpus)
    root = config.store / config.set_name(text.corpus.name)
    make_folder(config.store)
    state = processes()
    lm = load_masked_lm(name, revision, config.max_seq_length)
    require_known_words(text, lm.tokens, lm.name)
    lm.model.to(state.device)
    max_tokens = tokens_per_batch(state.device, config.max_tokens_per_batch)
    plan = masking_plan(text, lm.tokens, config.seed, config.num_copies)
    codec = codec_for(config, *lm.model.get_output_embeddings().weight.shape)
    stored = sum(file.stat().st_size for file in root.glob("masked_words/*.parquet"))
    require_space(config.store, int(estimate_size(text, lm.tokens, plan).num_bytes(codec)) - stored)
    inference = partial(inference_mode, state.device, config.precision)
    with inference():
        _probe(text, lm, plan)
    planned = staged_record(config, text, lm, plan, codec, command)

    def started(_: SetRecord) -> None:
        if codec.needs_decoder and state.is_main_process:
            with inference():
                write_decoder(root, decoder_of(lm))

    def write(record: SetRecord, shards: list[Shard]) -> None:
        ask = partial(_write_shards, lm, plan, max_tokens)
        errand = Errand(record, lm, config.precision, ask, (record.kind,))
        ask_here_or_there(config, root, errand, text, shards)

    def scores(record: SetRecord) -> Scores:
        if not record.num_rows:
            in_shards = f"any shard of --rows-per-shard {config.rows_per_shard:,} documents, which no block crosses"
            raise nothing_to_mask(text, in_shards)
        return MaskedWordSet(root, record).scores()

    return write_set(root, planned, lm.reader.tokenizer_json(), write, scores, config.job(), state, started)


def _probe(text: Text, lm: MaskedLm, plan: MaskingPlan) -> None:
    """Makes sure that what the decoder gets and gives is what the plain model would say, before the real work."""
    stop = min(text.config.validation_every * PROBE_DOCUMENTS, text.documents.num_documents)
    sequences = next(iter(text.sequences(lm.tokens, "validation", 0, stop)), None)
    if sequences is None:
        return
    masked = mask(sequences, plan)
    rows = list(range(min(8, len(masked.sequence_R))))
    if not rows:
        return
    hidden_PH, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows)
    _check_finite(lm, logits_PV, int(sequences.source_row_N[0]))
    with torch.autocast(logits_PV.device.type, enabled=False):
        again_PV = decoder_of(lm)(hidden_PH)
    difference = float((again_PV - logits_PV).abs().max() / logits_PV.abs().max())
    if not difference < 0.05:
        raise TeacherError(
            f"teacher {lm.name}: its logits are not those of its last layer (they differ by {difference:.0%}); "
            f"{type(lm.model).__name__} is built in a way that is not supported"
        )


def _check_finite(lm: MaskedLm, logits_PV: torch.Tensor, document: int) -> None:
    if not all(bound.isfinite() for bound in logits_PV.aminmax()):
        raise TeacherError(
            f"teacher {lm.name}: gives NaN or Inf near document {document}; fp16 overflows with some models, "
            "try --precision bf16 or fp32"
        )


def _write_shards(
    lm: MaskedLm,
    plan: MaskingPlan,
    max_tokens: int,
    root: Path,
    record: SetRecord,
    text: Text,
    shards: list[Shard],
) -> None:
    done = ""
    total = sum(text.count(shard.split, shard.start, shard.stop) for shard in shards)
    with console.progress(total, "teacher") as steps:
        for shard in stop_between(shards):
            steps.describe(f"teacher: {shard.split} {shard.index + 1}/{shard.count}{done}")
            statistics = no_statistics()
            groups = _groups(record, shard, text, lm, plan, max_tokens, statistics, steps)
            write_shard(root, record, shard, groups, statistics)
            if statistics["positions"]:
                size = (root / shard.path).stat().st_size / statistics["positions"]
                mass = statistics["kept_mass"] / statistics["positions"]
                done = f", last: {size:.1f} bytes a position, {mass:.1%} of the mass kept"


def _groups(
    record: SetRecord,
    shard: Shard,
    text: Text,
    lm: MaskedLm,
    plan: MaskingPlan,
    max_tokens: int,
    statistics: Statistics,
    steps: console.Steps,
) -> Iterator[pa.Table]:
    """The row groups of a shard, as the teacher goes through its documents; the next are read meanwhile."""
    size, seen = rows_per_group(record.codec), shard.start
    for sequences in prefetched(text.sequences(lm.tokens, shard.split, shard.start, shard.stop)):
        masked = mask(sequences, plan)
        for start in range(0, len(masked.sequence_R), size):
            part = masked.take(np.arange(start, min(start + size, len(masked.sequence_R))))
            rows = rows_of(sequences, part)
            columns = encoded_predictions(lm, record.codec, rows, plan.seed, max_tokens, statistics)
            yield tokens_table(record.codec, shard.split, rows, columns)
        now = int(sequences.source_row_N[-1]) + 1
        steps.advance(text.count(shard.split, seen, now))
        seen = now
    steps.advance(text.count(shard.split, seen, shard.stop))


def rows_of(sequences: Sequences, masked: Masked) -> MaskedRows:
    """Masked copies of sequences, with the keys of these."""
    return MaskedRows(
        sequences.source_row_N[masked.sequence_R],
        sequences.piece_N[masked.sequence_R],
        masked.copy_R,
        masked.ids,
        masked.positions,
        masked.targets,
    )


def encoded_predictions(
    lm: MaskedLm, codec: Codec, rows: MaskedRows, seed: int, max_tokens: int, statistics: Statistics
) -> dict[str, pa.Array]:
    """A masked LM's predictions at the masked positions, in the codec's columns, a value per row.

    Args:
        lm: the model, on its device; call this inside `inference_mode`.
        codec: how a prediction is stored.
        rows: the masked rows, R of them.
        seed: of the codec's draws.
        max_tokens: most padded tokens per batch.
        statistics: what the predictions add up to; it is added to.

    Raises:
        TeacherError: if a logit is not finite, or too large for the codec.
    """
    random_P = draws(rows, seed)
    place_R = rows.positions.offsets
    pieces: list[dict[str, pa.Array]] = []
    order: list[np.ndarray] = []

    def run(batch: list[int]) -> None:
        place_P = np.concatenate([np.arange(place_R[row], place_R[row + 1]) for row in batch])
        hidden_PH, logits_PV = predict_masked(lm, rows.ids, rows.positions, batch)
        _check_finite(lm, logits_PV, int(rows.source_row_R[batch[0]]))
        random_B = torch.from_numpy(random_P[place_P]).to(logits_PV.device)
        target_B = torch.from_numpy(rows.targets.flat[place_P]).to(logits_PV.device)
        try:
            columns = encode(codec, Predictions(logits_PV, hidden_PH, random_B), target_B, statistics)
        except BeyondHalfError as error:
            row = int(np.searchsorted(place_R, place_P[error.position], side="right")) - 1
            raise TeacherError(f"{_named(lm, rows, row)}: teacher {lm.name}, codec {codec}: {error}") from error
        pieces.append(columns)
        order.append(place_P)

    run_batches([length + lm.tokens.num_special for length in rows.ids.lengths.tolist()], max_tokens, run)
    back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
    return {name: pa.concat_arrays([piece[name] for piece in pieces]).take(back) for name in pieces[0]}


def _named(lm: MaskedLm, rows: MaskedRows, row: int) -> str:
    """Says which document a row is from, and its text."""
    text = lm.tokenizer.decode(rows.ids[row].tolist(), skip_special_tokens=False)
    return f"document {rows.source_row_R[row]}, {text[:LONGEST_SHOWN]!r}"
